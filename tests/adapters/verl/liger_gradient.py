"""Check that verl's gradient with Liger's layers equals a reference gradient.

verl's FSDP engine builds the model, without the process group around it. A program of its own:
Triton must interpret its kernels from the start.
"""

from __future__ import annotations

import os
from typing import Any

import verl_on_cpu
from triton_on_cpu import interpret_kernels


def built_by_verl(settings: Any) -> Any:
    """Return the model as verl's FSDP engine builds it."""
    from liger_kernel.transformers import LigerRMSNorm
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    engine.model_config = omega_conf_to_dataclass(settings.model)
    engine.engine_config = omega_conf_to_dataclass(settings.actor.fsdp_config)
    engine.device_mesh, engine.use_remove_padding = None, False
    engine.ulysses_sequence_parallel_size = 1
    model = engine._build_module()
    assert model.model.norm.forward.__func__ is LigerRMSNorm.forward
    return model


if __name__ == "__main__":
    interpret_kernels()
    os.environ.update(verl_on_cpu.environment())
    from gem_conformance import GRADIENT_CASES
    from gem_conformance.kit import check_gradient
    from ray_cluster import shut_down_ray
    from ray_start import start_ray

    from gem_verl import conformance

    start_ray(num_cpus=4, logging_level="ERROR")
    harness = conformance.VerlHarness(
        settings=[
            *verl_on_cpu.SETTINGS,
            *verl_on_cpu.PADDED,
            "actor_rollout_ref.model.use_liger=True",
        ]
    )
    model = built_by_verl(harness.settings.actor_rollout_ref)
    tokenizer = conformance.load_tiny()[1]
    conformance.load_tiny = lambda *args: (model, tokenizer)
    check_gradient(harness, GRADIENT_CASES[2])
    shut_down_ray()
