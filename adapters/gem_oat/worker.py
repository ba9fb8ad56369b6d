"""Worker: oat's extension of vLLM's workers, with newer versions of vLLM and torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oat.utils import distributed

from gem_core.adapter_kit.patching import patched

__all__ = ["WORKER", "GemWorker", "any_torch_version"]

WORKER = "gem_oat.worker.GemWorker"
"""The extension's name for `worker_extension_cls` of vLLM."""


class GemWorker(distributed.WorkerWrap):
    """oat's extension, which receives the learner's weights."""

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Join the learner's group, and return nothing: newer vLLM cannot send a group."""
        with any_torch_version():
            super().init_process_group(*args, **kwargs)


@contextmanager
def any_torch_version() -> Iterator[None]:
    """Let oat create a process group with torch 2.10 and later.

    oat chooses the name of an option by a comparison of torch's version as text, in which "2.10"
    is less than "2.6".
    """

    def create(*args: Any, pg_options: Any = None, **kwargs: Any) -> Any:
        return original(*args, **{"backend_options": pg_options, **kwargs})

    with patched(distributed, "_new_process_group_helper", create) as original:
        yield
