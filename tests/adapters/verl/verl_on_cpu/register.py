"""Register: registers the mocks; VERL_USE_EXTERNAL_MODULES makes each verl process import it."""

from __future__ import annotations

import importlib


def _replica() -> type:
    from verl_on_cpu.server import TransformersReplica

    return TransformersReplica


def _register() -> None:
    importlib.import_module("verl_on_cpu.platform")  # before verl detects its platform

    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("transformers", _replica)
    base._ROLLOUT_REGISTRY[("transformers", "async")] = "verl_on_cpu.server.TransformersAdapter"


_register()
