"""Ray cluster: stops the one that verl runs in."""

from __future__ import annotations

__all__ = ["shut_down_ray"]


def shut_down_ray() -> None:
    """Stop verl's queue and Ray, if they run."""
    import ray
    import transfer_queue as tq

    if ray.is_initialized():
        tq.close()
        ray.shutdown()
