"""Trainer: OpenRLHF's Ray actors with what gem needs of them, and `install`, which puts them where `train_ppo_ray` finds them.

OpenRLHF has no flag for a trainer class, but the driver alone looks its actors up, by name, before it starts them elsewhere.
So the names are given other classes there; each is a subclass, and nothing in a worker is patched:

| OpenRLHF's        | gem's              | what it adds                                                                    |
|-------------------|--------------------|---------------------------------------------------------------------------------|
| `PPOTrainer`      | `GemPPOTrainer`    | `GemExperienceMaker` for the advantages; tells the engines how many updates ran |
| `TrainingActor`   | `GemTrainingActor` | the same, for async training                                                    |
| `RolloutRayActor` | `GemRolloutActor`  | remembers that number, for horizons and the versions of what was sampled        |
| `PolicyModelActor`| `GemPolicyActor`   | an update with nothing to train is 0, not 0 / 0                                 |
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import openrlhf.utils
import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer_async import TrainingActor
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.loss_utils import get_loss_batch_info

from gem_core.adapter_kit.declaration import require
from gem_core.errors import GemError, UnknownNameError
from gem_openrlhf import ADAPTER
from gem_openrlhf.advantage import GemExperienceMaker
from gem_openrlhf.config import GemConfig, check_args, check_gpus, read_label

__all__ = ["GemActorTrainer", "GemPPOTrainer", "GemPolicyActor", "GemRolloutActor", "GemTraining", "GemTrainingActor", "install"]


def _class_of(actor: Any) -> Any:
    """The class as it was written, before `@ray.remote`; what Ray makes of it has a copy of every method it inherits."""
    return actor.__ray_metadata__.modified_class.__ray_actor_class__


class GemTraining(BasePPOTrainer):  # type: ignore[misc]
    """What OpenRLHF's two trainers share, with gem's advantages. It stands between them and their base."""

    gem_step = 0
    """Finished updates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.experience_maker = GemExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )
        self.gem_spec: GemConfig | None = None

    def init_checkpoint_states(self) -> dict[str, Any]:
        """OpenRLHF's own; a run that is resumed goes on counting."""
        states: dict[str, Any] = super().init_checkpoint_states()
        self.gem_step = int(states["global_step"])
        return states

    def train_step(self, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        """OpenRLHF's own, with how the episodes went among its numbers."""
        self.gem_step = global_step + 1
        self.gem_spec = getattr(rollout_samples[0].labels[0], "spec", None)
        self.experience_maker.metrics = None
        status, following = super().train_step(rollout_samples, global_step)
        if self.experience_maker.metrics is None:
            raise GemError("OpenRLHF made a step without gem's advantages; this version works differently from those tested")
        return {**status, **self.experience_maker.metrics}, following

    def broadcast_to_vllm(self) -> None:
        """OpenRLHF's own; the engines are told which weights they have, before they go on."""
        super().broadcast_to_vllm()
        ray.get([engine.set_gem_step.remote(self.gem_step) for engine in self.vllm_engines])

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
        """OpenRLHF's own, and a line in the metrics file."""
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        if self.gem_spec is not None and self.gem_spec.metrics is not None:
            numbers = {k: v for k, v in (logs_dict or {}).items() if isinstance(v, (int, float))}
            path = Path(self.gem_spec.metrics)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": global_step, **numbers}) + "\n")


@ray.remote
class GemPPOTrainer(_class_of(PPOTrainer), GemTraining):  # type: ignore[misc]
    """Plays and trains in turn."""


@ray.remote
class GemTrainingActor(_class_of(TrainingActor), GemTraining):  # type: ignore[misc]
    """Trains while another actor plays."""


@ray.remote
class GemRolloutActor(_class_of(RolloutRayActor)):  # type: ignore[misc]
    """A vLLM engine that knows which weights it has."""

    gem_step = 0

    async def set_gem_step(self, step: int) -> None:
        """Finished updates; the executor reads it off the engine."""
        self.gem_step = step


class GemActorTrainer(ActorPPOTrainer):  # type: ignore[misc]
    """OpenRLHF's optimisation of the policy, safe for rows with nothing to train."""

    def training_step(self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None) -> dict[str, Any]:
        """OpenRLHF divides by the trained tokens of an update: by 1 at least, here."""
        info = loss_batch_info or get_loss_batch_info(
            self.strategy,
            experience.action_mask,
            replay_buffer=self.replay_buffer,
            step=step,
            dynamic_batch=self.args.train.dynamic_batch_enable,
        )
        for name in ("batch_num_tokens", "global_batch_size"):
            info = {**info, name: info[name].masked_fill(info[name] == 0, 1.0)}
        status: dict[str, Any] = super().training_step(experience, kl_ctl, step, info)
        if not experience.action_mask.any():  # means over no token, which weigh nothing but would make all others NaN
            status["metrics"] = {k: v.nan_to_num() if hasattr(v, "nan_to_num") else v for k, v in status["metrics"].items()}
        return status


@ray.remote(num_gpus=1)
class GemPolicyActor(_class_of(PolicyModelActor)):  # type: ignore[misc]
    """A rank of the policy that is trained."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """OpenRLHF's own, with our training step."""
        super().init_model_from_pretrained(*args, **kwargs)
        self.trainer.__class__ = GemActorTrainer  # built inside OpenRLHF's method, process group and all


_REPLACED = (
    ("openrlhf.trainer.ppo_trainer", "PPOTrainer", GemPPOTrainer),
    ("openrlhf.trainer.ppo_trainer_async", "TrainingActor", GemTrainingActor),
    ("openrlhf.trainer.ray.vllm_engine", "RolloutRayActor", GemRolloutActor),
    ("openrlhf.trainer.ray.ppo_actor", "PolicyModelActor", GemPolicyActor),
)
_get_strategy = openrlhf.utils.get_strategy


def install() -> None:
    """Has `train_ppo_ray`, started in this process, use gem's classes and refuse what they cannot honour. Twice is harmless."""
    require(ADAPTER)
    for module, name, ours in _REPLACED:
        setattr(importlib.import_module(module), name, ours)
    openrlhf.utils.get_strategy = _checked_strategy


def _checked_strategy(args: Any) -> Any:
    """The first thing `train` asks for, once OpenRLHF has read its flags and before any model is loaded."""
    check_args(args, _spec_of(args.data.prompt_dataset, args.data.label_key))
    check_gpus(args, int(ray.cluster_resources().get("GPU", 0)))
    return _get_strategy(args)


def _spec_of(prompt_dataset: str | None, label_key: str | None) -> GemConfig | None:
    """What is trained on, where the data set is a file gem wrote; engines read the others when they play."""
    path = Path((prompt_dataset or "").split(",")[0].strip())
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline() or "{}")
    try:
        return read_label(first.get(label_key))[0]
    except UnknownNameError:  # an environment that only the agent file registers
        return None
