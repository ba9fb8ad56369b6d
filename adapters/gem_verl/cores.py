"""Cores: whether Ray has as many as verl's V1 trainers reserve, for which they wait forever."""

from __future__ import annotations

import os
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["check_cores"]

_CORES_PER_GPU = 3
"""Cores that verl reserves for the workers of a GPU."""
_OTHER_CORES = 2
"""Cores for the controller of verl's queue, and for starting actors."""


def check_cores(settings: Any) -> None:
    """Raise if Ray has too few cores for verl's settings."""
    if not settings.trainer.use_v1:
        return
    queue, gpus = settings.transfer_queue.backend, settings.trainer.n_gpus_per_node
    gpus *= settings.trainer.nnodes
    simple = queue.storage_backend == "SimpleStorage"
    units = queue.SimpleStorage.num_data_storage_units if simple else 0
    needed, cores = units + _CORES_PER_GPU * gpus + _OTHER_CORES, _ray_cores(settings)
    message = (
        f"Ray has {cores:g} cores, but verl reserves {needed}: {units} for the storage units of "
        f"its queue, {_CORES_PER_GPU} for each of {gpus} GPUs and {_OTHER_CORES} for other "
        "processes. It would wait for them forever. Set "
        "transfer_queue.backend.SimpleStorage.num_data_storage_units to fewer units (1 is enough "
        f"for one machine), or ray_kwargs.ray_init.num_cpus={needed}: most of these processes wait"
    )
    if cores < needed:
        raise ConfigError(message)


def _ray_cores(settings: Any) -> float:
    """Return the cores of the Ray cluster that verl will use; infinity if that is not known."""
    import ray

    if ray.is_initialized():
        return float(ray.cluster_resources().get("CPU", 0))
    arguments = settings.ray_kwargs.get("ray_init") or {}
    if arguments.get("address") or os.environ.get("RAY_ADDRESS"):
        return float("inf")
    return float(arguments.get("num_cpus") or _cores_of_machine())


def _cores_of_machine() -> float:
    """Return the cores that a new Ray cluster has: those of the container, if it has a limit."""
    try:
        from ray._private.utils import get_num_cpus
    except ImportError:  # a later Ray may move it
        return float(os.cpu_count() or 1)
    return float(get_num_cpus())
