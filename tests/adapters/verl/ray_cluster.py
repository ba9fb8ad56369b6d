"""Ray cluster: starts and stops the one that verl runs in."""

from __future__ import annotations

__all__ = ["shut_down_ray", "start_ray"]


def start_ray(**resources: int) -> None:
    """Start Ray; on a busy machine it needs more than one attempt."""
    import ray

    for attempts_left in reversed(range(8)):
        if ray.is_initialized():
            break
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                **resources,
            )
        except Exception:
            ray.shutdown()
            if not attempts_left:
                raise


def shut_down_ray() -> None:
    """Stop verl's queue and Ray, if they run."""
    import ray
    import transfer_queue as tq

    if ray.is_initialized():
        tq.close()
        ray.shutdown()
