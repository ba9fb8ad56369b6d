"""verl on a CPU: mocks of the parts of verl that need a GPU. For tests only.

verl's own registries replace the platform (`platform.py`) and the inference server, which becomes a
transformers model (`server.py`); `weights.py` sends weights to separate servers. Two patches change
a process group with two CPU backends, and a critic that requests flash-attn. Trainer,
TransferQueue, agent loops, FSDP engine, loss and optimizer are verl's.

    VERL_USE_EXTERNAL_MODULES=verl_on_cpu.register VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda

loads the mocks if this folder's parent is on PYTHONPATH. `environment()` returns all variables,
`SETTINGS` has the hydra overrides, and `python -m verl_on_cpu RECIPE` runs a recipe with both.
"""

from __future__ import annotations

import os
from pathlib import Path

SETTINGS = [
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "critic.model.use_remove_padding=False",
    "critic.model.enable_gradient_checkpointing=False",
    "critic.strategy=fsdp2",
    "critic.fsdp.dtype=float32",
    "critic.fsdp.use_torch_compile=False",
    "+critic.fsdp.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "reward.num_workers=1",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "+ray_kwargs.ray_init.num_gpus=2",  # logical GPUs: verl's resource pools count GPUs
    "ray_kwargs.ray_init.num_cpus=8",
    "+ray_kwargs.ray_init.include_dashboard=False",
]
"""Hydra overrides for `verl.trainer.main_ppo`."""
PADDED = [
    "++actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.use_remove_padding=False",
]
"""Hydra overrides for padded sequences. The recipes pack them."""


def environment() -> dict[str, str]:
    """Return the environment variables of a run; verl's Ray workers inherit them."""
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parents[1])
    return {
        "PYTHONPATH": here if not before else os.pathsep.join([here, before]),
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu.register",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine under this name only
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
