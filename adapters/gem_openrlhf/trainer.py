"""Trainer: runs OpenRLHF with gem's per-turn advantages.

OpenRLHF computes advantages in `RemoteExperienceMaker.compute_advantages_and_returns`, in one
process for all ranks, and has no hook for them. gem overrides that method in `GemExperienceMaker`.

OpenRLHF has no setting for a trainer class, but its driver looks up its actors by name before it
starts them in other processes. `train` replaces these names with subclasses during the run, and
patches nothing in the workers:

| OpenRLHF               | gem                 | what the subclass adds                          |
|------------------------|---------------------|-------------------------------------------------|
| `PPOTrainer`           | `GemPPOTrainer`     | `GemExperienceMaker`, `SharedTokenizer`         |
| `TrainingActor`        | `GemTrainingActor`  | `GemExperienceMaker`, for async training        |
| `GenerateSamplesActor` | `GemGenerateActor`  | `SharedTokenizer`, for async training           |
| `RolloutRayActor`      | `GemRolloutActor`   | the update number, for horizons and versions    |
| `PolicyModelActor`     | `GemPolicyActor`    | loss 0, not 0 / 0, if an update trains no token |
| `get_strategy`         | `_checked_strategy` | `check_settings`, after the flags are parsed    |
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import openrlhf.utils
import ray
import torch
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray import ppo_actor, vllm_engine
from openrlhf.utils.loss_utils import get_loss_batch_info

from gem_core.adapter_kit.batch import check_sequence
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError, ConfigError, UnknownNameError
from gem_core.plugins.events import send_event
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode
from gem_openrlhf.config import GemConfig, carried_fields, check_settings, config_of
from gem_openrlhf.convert import EpisodeLabel, per_token
from gem_openrlhf.dataset import first_label, write_dataset
from gem_openrlhf.rollout import SharedTokenizer

__all__ = [
    "GemActorTrainer",
    "GemExperienceMaker",
    "GemGenerateActor",
    "GemPPOTrainer",
    "GemPolicyActor",
    "GemRolloutActor",
    "GemTraining",
    "GemTrainingActor",
    "check_batch",
    "put_advantages",
    "run_program",
    "train",
]

_AGENT = Path(__file__).with_name("agent.py")
_LOGGED = {"loss": "policy_loss", "grad_norm": "actor_grad_norm", "kl": "kl", "vllm_kl": "vllm_kl"}
"""Names in the metrics file, and OpenRLHF's names of the same numbers."""


def train(
    config: GemConfig | None, settings: Sequence[str], data: str | Path = "gem_data.jsonl"
) -> None:
    """Train with OpenRLHF to the end.

    `settings`: OpenRLHF's own, the command-line flags of `train_ppo_ray`. `data`: the path to write
    the dataset to; all nodes must be able to read it. `config`: None if `--data.prompt_dataset`
    names a dataset that `write_dataset` wrote.
    """
    flags, path = list(settings), Path(data).absolute()
    if config is not None:
        _add_dataset(flags, "--data.prompt_dataset", config, path)
        if config.held_out_seeds:
            _add_dataset(
                flags, "--eval.dataset", config, path.with_suffix(".eval.jsonl"), evaluation=True
            )
    for name, value in (
        ("--train.agent_func_path", str(_AGENT)),
        ("--data.input_key", "input"),
        ("--data.label_key", "label"),
        ("--algo.advantage.estimator", "reinforce"),
    ):
        if not _has(flags, name):
            flags += [name, value]
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.callback(ray.shutdown)
        for owner, name, replacement, parameters in _REPLACED:
            stack.enter_context(patched(owner, name, replacement, parameters))
        run_program(flags, partial(_checked_strategy, openrlhf.utils.get_strategy))


def run_program(flags: Sequence[str], get_strategy: Callable[[Any], Any]) -> None:
    """Run `train_ppo_ray` with these flags. It passes the parsed flags to `get_strategy`.

    It runs as `__main__`, because only there it parses flags.
    """
    with (
        patched(sys, "argv", ["train_ppo_ray", *flags]),
        patched(openrlhf.utils, "get_strategy", get_strategy, "args"),
    ):
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


def _class_of(actor: Any) -> Any:
    """Return the class under `@ray.remote`. Ray's own subclass copies every inherited method."""
    return actor.__ray_metadata__.modified_class.__ray_actor_class__


class GemExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with per-turn advantages by the estimator of the `GemConfig`."""

    last_batch: BatchMetrics | None = None
    """The metrics of the last batch's episodes."""

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """Make experiences as OpenRLHF does; metrics of sequences without trained tokens are 0."""
        experiences: list[Any] = super().make_experience(samples_list)
        for experience in experiences:
            empty = ~experience.action_mask.bool().any(dim=-1)
            for name in ("kl", "logprobs_diff"):
                experience.info[name] = experience.info[name].masked_fill(empty, 0.0)
        return experiences

    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Take the episodes out of the labels and set gem's advantages."""
        self.last_batch = put_advantages(experiences)
        return experiences


class GemTraining(ppo_trainer.BasePPOTrainer):
    """Base of gem's two trainers, sync and async: gem's advantages and metrics."""

    gem_step = 0
    """Finished updates."""
    gem_log: UpdateLog
    experience_maker: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # OpenRLHF constructs the experience maker inside its own constructor
        self.experience_maker.__class__ = GemExperienceMaker

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Open the metrics file, and read the number of finished updates of a resumed run."""
        states: dict[str, Any] = super().init_checkpoint_states()
        self.gem_step = int(states["global_step"])
        label = first_label(self.args.data)
        fields = {} if label is None else carried_fields(label)
        self.gem_log = UpdateLog(
            fields.get("metrics"),
            max_failed_updates=fields.get("max_failed_updates", GemConfig.max_failed_updates),
            estimator=fields.get("advantage", GemConfig.advantage),
        )
        return states

    def train_step(
        self, rollout_samples: list[Any], global_step: int
    ) -> tuple[dict[str, Any], int]:
        """Train one update and add gem's metrics to OpenRLHF's status."""
        self.gem_step = global_step + 1
        self.experience_maker.last_batch = None
        status, next_step = super().train_step(rollout_samples, global_step)
        if self.experience_maker.last_batch is None:
            raise BatchMismatchError(
                "OpenRLHF made an update without gem's advantages: it did not call "
                "compute_advantages_and_returns; use a version of OpenRLHF that the adapter "
                "supports"
            )
        batch: BatchMetrics = self.experience_maker.last_batch
        metrics = {**batch.means(), "tokens": float(batch.tokens)}
        return {**status, **{f"gem/{name}": value for name, value in metrics.items()}}, next_step

    def broadcast_to_vllm(self) -> None:
        """Send the weights to the engines, then the number of the update they come from."""
        super().broadcast_to_vllm()
        ray.get([engine.set_gem_step.remote(self.gem_step) for engine in self.vllm_engines])

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        """Log as OpenRLHF does, and write a line to the metrics file."""
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        if self.experience_maker.last_batch is None:  # before the first update
            return
        logs = logs_dict or {}
        numbers = {name: logs[key] for name, key in _LOGGED.items() if key in logs}
        self.gem_log.write(global_step - 1, self.experience_maker.last_batch, **numbers)


@ray.remote
class GemPPOTrainer(_class_of(ppo_trainer.PPOTrainer), GemTraining):  # type: ignore[misc]
    """OpenRLHF's sync trainer: plays and trains alternately."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _share_tokenizer(self)


@ray.remote
class GemTrainingActor(_class_of(ppo_trainer_async.TrainingActor), GemTraining):  # type: ignore[misc]
    """OpenRLHF's async trainer: trains while another actor plays."""


@ray.remote
class GemGenerateActor(_class_of(ppo_trainer_async.GenerateSamplesActor)):  # type: ignore[misc]
    """OpenRLHF's async player."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _share_tokenizer(self)


@ray.remote
class GemRolloutActor(_class_of(vllm_engine.RolloutRayActor)):  # type: ignore[misc]
    """A vLLM engine that knows the update its weights come from."""

    gem_step = 0

    async def set_gem_step(self, step: int) -> None:
        """Store the number of finished updates. The agent executor reads it."""
        self.gem_step = step


class GemActorTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's policy optimisation, also for sequences without trained tokens."""

    def training_step(
        self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None
    ) -> dict[str, Any]:
        """Train one micro-batch. The loss divides by the trained tokens, or by 1 if none."""
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
        # means over no tokens have weight 0, but as NaN they would make the sum NaN
        if not experience.action_mask.any():
            status["metrics"] = {
                k: v.nan_to_num() if hasattr(v, "nan_to_num") else v
                for k, v in status["metrics"].items()
            }
        return status


@ray.remote(num_gpus=1)
class GemPolicyActor(_class_of(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """One rank of the trained policy."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Load the model and use gem's training step."""
        super().init_model_from_pretrained(*args, **kwargs)
        # OpenRLHF constructs the trainer inside this method, with a process group
        self.trainer.__class__ = GemActorTrainer


_MODEL_GROUPS = "actor_model_group critic_model_group reward_model_group reference_model_group"
_REPLACED = (
    (
        ppo_trainer,
        "PPOTrainer",
        GemPPOTrainer,
        f"pretrain strategy {_MODEL_GROUPS} vllm_engines generate_kwargs",
    ),
    (
        ppo_trainer_async,
        "TrainingActor",
        GemTrainingActor,
        f"pretrain strategy {_MODEL_GROUPS} vllm_engines vllm_lock rollout_queue rollout_slots",
    ),
    (
        ppo_trainer_async,
        "GenerateSamplesActor",
        GemGenerateActor,
        "pretrain strategy vllm_engines vllm_lock rollout_queue rollout_slots generate_kwargs",
    ),
    (
        vllm_engine,
        "RolloutRayActor",
        GemRolloutActor,
        "args bundle_indices agent_func_path remote_rm_url mm_pad_token_ids kwargs",
    ),
    (ppo_actor, "PolicyModelActor", GemPolicyActor, "world_size rank master_addr master_port"),
)
"""(module, name, replacement, parameters of the original constructor)."""


def _share_tokenizer(actor: Any) -> None:
    """Send engines a reference to the tokenizer with each prompt, instead of a copy."""
    generator = actor.samples_generator
    generator.tokenizer = SharedTokenizer(generator.tokenizer)


def put_advantages(experiences: Sequence[Any]) -> BatchMetrics:
    """Write gem's advantages and returns: one number per token, 0 on untrained tokens.

    Statistics cover all ranks. Returns the metrics of the episodes.
    """
    config = _config_of_batch(experiences)
    check_batch(experiences)
    episodes = [label.episode for experience in experiences for label in experience.labels]
    send_event("batch_end", episodes=episodes)
    per_turn = config.compute_advantages(episodes)
    numbers = iter(per_turn)
    for experience in experiences:
        labels: list[EpisodeLabel] = experience.labels
        returns = [_returns(label.episode, config.gamma) for label in labels]
        experience.advantages = _tensor(
            experience, [per_token(label.sequence, next(numbers)) for label in labels]
        )
        experience.returns = _tensor(
            experience,
            [per_token(label.sequence, turns) for label, turns in zip(labels, returns)],
        )
        experience.info["return"] = torch.tensor(
            [float(label.episode.total_reward or 0.0) for label in labels]
        )
        experience.labels = [label.label for label in labels]
        experience.kl = None  # as in OpenRLHF's own method: only rewards would use it
    return BatchMetrics.of(episodes, per_turn)


def check_batch(experiences: Sequence[Any]) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    for experience in experiences:
        masks = experience.action_mask.long().tolist()
        for label, ids, mask in zip(experience.labels, experience.sequences.tolist(), masks):
            where = f"the sequence of seed {label.episode.seed} in OpenRLHF's batch"
            check_sequence(where, ids, mask, label.sequence.ids, label.sequence.mask[1:])


def _config_of_batch(experiences: Sequence[Any]) -> GemConfig:
    """Return the config of a batch. All its labels must have the same estimator settings."""
    labels = [label for experience in experiences for label in experience.labels]
    for label in labels:
        if not isinstance(label, EpisodeLabel):
            raise ConfigError(
                "gem did not play a sample of this batch, so its turns are unknown; set "
                "--train.agent_func_path to gem_openrlhf's agent.py, or to a file that imports "
                f"GemAgentExecutor as AgentExecutor. Got: the label {str(label)[:80]!r}"
            )
    configs: list[GemConfig] = [label.config for label in labels]
    estimators = {
        (config.advantage, config.gamma, str(sorted(config.estimator_kwargs.items())))
        for config in configs
    }
    if len(estimators) > 1:
        raise ConfigError(
            "all datasets must have the same advantage estimator, gamma and estimator_kwargs; "
            f"write them with one of these: {sorted(estimators)}"
        )
    return configs[0]


def _tensor(experience: Any, sequences: Sequence[Sequence[float]]) -> Any:
    """Return the numbers of all sequences as one padded tensor."""
    padded = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
    for i, numbers in enumerate(sequences):
        padded[i, : len(numbers)] = torch.tensor(numbers, dtype=torch.float32)
    return padded


def _returns(episode: Episode, gamma: float) -> list[float]:
    """Return the discounted return of each turn; 0 for a failed episode."""
    if episode.failed:
        return [0.0] * len(episode.turns)
    return discounted_returns(episode.rewards, gamma)


def _checked_strategy(get_strategy: Callable[[Any], Any], args: Any) -> Any:
    """Check the settings, then call OpenRLHF's `get_strategy`. No model is loaded yet."""
    label = first_label(args.data)
    try:
        config = None if label is None else config_of(label)
    except UnknownNameError:  # an environment that only the agent file registers
        config = None
    check_settings(args, config, int(ray.cluster_resources().get("GPU", 0)))
    return get_strategy(args)


def _add_dataset(
    flags: list[str], name: str, config: GemConfig, path: Path, evaluation: bool = False
) -> None:
    """Write the dataset of the config, and add the flag that names it."""
    if _has(flags, name):
        raise ConfigError(
            f"{name} and a GemConfig are both set, but the GemConfig writes its own dataset; "
            "remove one of them"
        )
    flags += [name, str(write_dataset(config, path, evaluation=evaluation))]


def _has(flags: Sequence[str], name: str) -> bool:
    return any(flag == name or flag.startswith(f"{name}=") for flag in flags)
