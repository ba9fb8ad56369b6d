"""Worker: oat's vLLM worker extension, for newer versions of vLLM and torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oat.utils import distributed

from gem_core.adapter_kit.patching import patched

__all__ = ["WORKER", "GemWorker", "newer_torch"]

WORKER = "gem_oat.worker.GemWorker"
"""The extension's name for `worker_extension_cls` of vLLM."""


class GemWorker(distributed.WorkerWrap):
    """oat's extension, which receives the learner's weights."""

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Join the learner's group. Return None: newer vLLM cannot serialize a process group."""
        with newer_torch():
            super().init_process_group(*args, **kwargs)


@contextmanager
def newer_torch() -> Iterator[None]:
    """Let oat create process groups with torch 2.6 and later, including 2.10.

    oat compares torch's version as text, and as text "2.10" is less than "2.6", so it passes an
    option under its old name.
    """

    def create(*args: Any, pg_options: Any = None, **kwargs: Any) -> Any:
        return original(*args, **{"backend_options": pg_options, **kwargs})

    with patched(distributed, "_new_process_group_helper", create) as original:
        yield
