"""Cores: check that Ray has the cores that verl reserves. With fewer, verl waits forever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gem_core.adapter_kit.patching import patched
from gem_core.errors import ConfigError

__all__ = ["check_cores", "cores_checked", "reserved_cores"]

PER_GPU = 3
"""Cores that verl reserves for the workers of a GPU."""
PER_SERVER_GPU = 2
"""Cores that it reserves for a GPU that only generates."""
_QUEUE = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


@contextmanager
def cores_checked(settings: Any) -> Iterator[None]:
    """Run `check_cores` now, or as soon as verl has started Ray or connected to a cluster."""
    import ray

    if ray.is_initialized():
        check_cores(settings, ray.cluster_resources().get("CPU", 0), started=False)
        yield
        return

    def init_and_check(*args: Any, **kwargs: Any) -> Any:
        context = init(*args, **kwargs)
        check_cores(settings, ray.cluster_resources().get("CPU", 0), started=True)
        return context

    with patched(ray, "init", init_and_check) as init:
        yield


def check_cores(settings: Any, cores: float, started: bool) -> None:
    """Raise if Ray has too few cores for verl's settings.

    `cores`: of all nodes that are there; verl counts GPUs in the same way. `started`: whether this
    program has started Ray or connected to it, so verl's settings of Ray had an effect.
    """
    parts = reserved_cores(settings)
    needed, units = sum(parts.values()), parts.get(_QUEUE, 0)
    if cores >= needed:
        return
    remedies = [
        f"ray_kwargs.ray_init.num_cpus={needed}, if this program starts Ray"
        if started
        else f"num_cpus={needed} where you start Ray"
    ]
    if units > 1 and needed - units + 1 <= cores:
        fewer = min(2, int(cores) - needed + units)
        remedies.insert(0, f"{_QUEUE}={fewer}")
    listed = ", ".join(f"{count} for {name}" for name, count in parts.items() if count)
    raise ConfigError(
        f"Ray has {cores:g} cores, but verl reserves {needed} and would wait for them forever "
        f"({listed}). Set {' or '.join(remedies)}. These processes are mostly idle, so they can "
        "share cores"
    )


def reserved_cores(settings: Any) -> dict[str, int]:
    """Return the cores that verl's trainer reserves, by what needs them."""
    trainer, rollout = settings.trainer, settings.actor_rollout_ref.rollout
    parts = {"the workers of the GPUs": PER_GPU * trainer.n_gpus_per_node * trainer.nnodes}
    if not trainer.use_v1:
        return {**parts, "the trainer": 1}
    if str(trainer.v1.trainer_mode).endswith("separate_async"):
        servers = rollout.n_gpus_per_node * rollout.nnodes
        parts["the inference servers"] = PER_SERVER_GPU * servers
    queue = settings.transfer_queue.backend
    if queue.storage_backend == "SimpleStorage":
        parts[_QUEUE] = queue.SimpleStorage.num_data_storage_units
    return {**parts, "the controller of the queue": 1, "starting actors": 1}
