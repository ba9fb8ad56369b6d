"""Ray start: starts a local Ray for the tests."""

from __future__ import annotations

from typing import Any

__all__ = ["start_ray"]


def start_ray(**settings: Any) -> None:
    """Start Ray, unless it runs. On a busy machine that needs more than one attempt.

    Ray waits 30 seconds for its own processes, which no setting changes.
    """
    import ray

    defaults = {"address": "local", "include_dashboard": False, "log_to_driver": False}
    for attempts_left in reversed(range(8)):
        if ray.is_initialized():
            break
        try:
            ray.init(**{**defaults, **settings})
        except Exception:
            ray.shutdown()
            if not attempts_left:
                raise
