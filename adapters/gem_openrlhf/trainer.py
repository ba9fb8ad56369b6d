"""Trainer: OpenRLHF's Ray actors with per-turn advantages, and `train`, which runs `train_ppo_ray` with them.

OpenRLHF has no setting for a trainer class, but the driver looks up its actors by name before it starts them in other
processes. `train` replaces these names for the time of the run; each replacement is a subclass, and nothing is patched in a
worker:

| OpenRLHF's         | gem's               | what it adds                                                                      |
|--------------------|---------------------|-----------------------------------------------------------------------------------|
| `PPOTrainer`       | `GemPPOTrainer`     | `GemExperienceMaker` for the advantages; reports the number of updates to engines |
| `TrainingActor`    | `GemTrainingActor`  | the same, for async training                                                      |
| `RolloutRayActor`  | `GemRolloutActor`   | stores that number, for horizons and the weight versions of generated tokens      |
| `PolicyModelActor` | `GemPolicyActor`    | an update in which nothing is trained is 0, not 0 / 0                             |
| `get_strategy`     | `_checked_strategy` | rejects settings, after `train_ppo_ray` parsed its flags and before it does more  |

Advantages are computed in one process for all ranks, in `RemoteExperienceMaker.compute_advantages_and_returns`, for which
OpenRLHF has no registry either: `GemExperienceMaker` overrides that method.
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

from gem_core.adapter_kit.batch import check_sequence, mean_abs_advantage
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError, ConfigError, UnknownNameError
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode
from gem_openrlhf.config import GemConfig, carried_fields, check_settings, config_of
from gem_openrlhf.convert import EpisodeLabel, per_token
from gem_openrlhf.dataset import first_label, write_dataset

__all__ = [
    "GemActorTrainer",
    "GemExperienceMaker",
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
"""Names in the metrics file, and OpenRLHF's names for them."""


def train(
    config: GemConfig | None, settings: Sequence[str], data: str | Path = "gem_data.jsonl"
) -> None:
    """Train with OpenRLHF. `settings`: the command-line flags of `train_ppo_ray`. `data`: where the data set of the config is
    written, which all nodes must be able to read. `config` is None if `--data.prompt_dataset` names a data set that
    `write_dataset` wrote."""
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
    """Run `train_ppo_ray` with these flags. It parses them only as the program, and passes the result to `get_strategy`."""
    with (
        patched(sys, "argv", ["train_ppo_ray", *flags]),
        patched(openrlhf.utils, "get_strategy", get_strategy, "args"),
    ):
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


def _class_of(actor: Any) -> Any:
    """The class as it was written, before `@ray.remote`; Ray's own subclass has a copy of every method it inherits."""
    return actor.__ray_metadata__.modified_class.__ray_actor_class__


class GemExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with per-turn advantages by the estimator of the `GemConfig` that was played."""

    last_batch: tuple[BatchMetrics, float] | None = None
    """Metrics of the last batch's episodes, and the mean of abs(advantage)."""

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """OpenRLHF's own, whose means over the trained tokens of a sequence are NaN if it has none."""
        experiences: list[Any] = super().make_experience(samples_list)
        for experience in experiences:
            empty = ~experience.action_mask.bool().any(dim=-1)
            for name in ("kl", "logprobs_diff"):
                experience.info[name] = experience.info[name].masked_fill(empty, 0.0)
        return experiences

    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Takes the episodes out of the labels, and sets the advantages of their turns."""
        self.last_batch = put_advantages(experiences)
        return experiences


class GemTraining(ppo_trainer.BasePPOTrainer):
    """What OpenRLHF's two trainers share, with gem's advantages. It is a base class between them and their own."""

    gem_step = 0
    """Finished updates."""
    gem_log: UpdateLog
    experience_maker: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.experience_maker.__class__ = (
            GemExperienceMaker  # constructed inside OpenRLHF's constructor
        )

    def init_checkpoint_states(self) -> dict[str, Any]:
        """OpenRLHF's own, the start of training; a resumed run continues to count its updates."""
        states: dict[str, Any] = super().init_checkpoint_states()
        self.gem_step = int(states["global_step"])
        label = first_label(self.args.data)
        self.gem_log = UpdateLog(None if label is None else carried_fields(label).get("metrics"))
        return states

    def train_step(
        self, rollout_samples: list[Any], global_step: int
    ) -> tuple[dict[str, Any], int]:
        """OpenRLHF's own, with gem's metrics in its status."""
        self.gem_step = global_step + 1
        self.experience_maker.last_batch = None
        status, next_step = super().train_step(rollout_samples, global_step)
        if self.experience_maker.last_batch is None:
            raise BatchMismatchError(
                "OpenRLHF made an update without gem's advantages: it did not call compute_advantages_and_returns. Use a version "
                "the adapter supports"
            )
        episodes, advantage_abs = self.experience_maker.last_batch
        metrics = {
            **episodes.means(),
            "tokens": float(episodes.tokens),
            "advantage_abs": advantage_abs,
        }
        return {**status, **{f"gem/{name}": value for name, value in metrics.items()}}, next_step

    def broadcast_to_vllm(self) -> None:
        """OpenRLHF's own; then the engines learn which weights they have, before they continue."""
        super().broadcast_to_vllm()
        ray.get([engine.set_gem_step.remote(self.gem_step) for engine in self.vllm_engines])

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        """OpenRLHF's own, and a line in the metrics file."""
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        if self.experience_maker.last_batch is None:  # nothing was trained since the start
            return
        episodes, advantage_abs = self.experience_maker.last_batch
        numbers = {
            name: logs_dict[theirs]
            for name, theirs in _LOGGED.items()
            if theirs in (logs_dict or {})
        }
        self.gem_log.write(global_step - 1, episodes, advantage_abs=advantage_abs, **numbers)


@ray.remote
class GemPPOTrainer(_class_of(ppo_trainer.PPOTrainer), GemTraining):  # type: ignore[misc]
    """Plays and trains in turn."""


@ray.remote
class GemTrainingActor(_class_of(ppo_trainer_async.TrainingActor), GemTraining):  # type: ignore[misc]
    """Trains while another actor plays."""


@ray.remote
class GemRolloutActor(_class_of(vllm_engine.RolloutRayActor)):  # type: ignore[misc]
    """A vLLM engine that knows which weights it has."""

    gem_step = 0

    async def set_gem_step(self, step: int) -> None:
        """Store the number of finished updates, which the executor reads."""
        self.gem_step = step


class GemActorTrainer(ppo_actor.ActorPPOTrainer):
    """OpenRLHF's optimisation of the policy, which takes sequences without trained tokens, too."""

    def training_step(
        self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None
    ) -> dict[str, Any]:
        """OpenRLHF divides by the trained tokens of an update; here, by at least 1."""
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
        if (
            not experience.action_mask.any()
        ):  # means over no token: their weight is 0, but they would make all others NaN
            status["metrics"] = {
                k: v.nan_to_num() if hasattr(v, "nan_to_num") else v
                for k, v in status["metrics"].items()
            }
        return status


@ray.remote(num_gpus=1)
class GemPolicyActor(_class_of(ppo_actor.PolicyModelActor)):  # type: ignore[misc]
    """A rank of the policy that is trained."""

    def init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """OpenRLHF's own, with gem's training step."""
        super().init_model_from_pretrained(*args, **kwargs)
        self.trainer.__class__ = (
            GemActorTrainer  # constructed inside OpenRLHF's method, with a process group
        )


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
        vllm_engine,
        "RolloutRayActor",
        GemRolloutActor,
        "args bundle_indices agent_func_path remote_rm_url mm_pad_token_ids kwargs",
    ),
    (ppo_actor, "PolicyModelActor", GemPolicyActor, "world_size rank master_addr master_port"),
)
"""(module, name, replacement, parameters of the original's constructor)."""


def put_advantages(experiences: Sequence[Any]) -> tuple[BatchMetrics, float]:
    """Set advantages and returns, one number per action position, 0 where nothing is trained. Returns the metrics of the episodes
    and the mean of abs(advantage)."""
    config = _config_of_batch(experiences)
    check_batch(experiences)
    episodes = [label.episode for experience in experiences for label in experience.labels]
    per_turn = config.compute_advantages(episodes)
    numbers = iter(per_turn)
    for experience in experiences:
        labels: list[EpisodeLabel] = experience.labels
        returns = [_returns(label.episode, config.gamma) for label in labels]
        experience.advantages = _tensor(
            experience, [per_token(label.sequence, next(numbers)) for label in labels]
        )
        experience.returns = _tensor(
            experience, [per_token(label.sequence, each) for label, each in zip(labels, returns)]
        )
        experience.info["return"] = torch.tensor(
            [float(label.episode.total_reward or 0.0) for label in labels]
        )
        experience.labels = [label.label for label in labels]
        experience.kl = None  # as OpenRLHF's own method does: it was for the reward
    return BatchMetrics.of(episodes), mean_abs_advantage(episodes, per_turn)


def check_batch(experiences: Sequence[Any]) -> None:
    """Raise `BatchMismatchError` unless the batch for the loss holds the ids and the loss mask that were played."""
    for experience in experiences:
        masks = experience.action_mask.long().tolist()
        for label, ids, mask in zip(experience.labels, experience.sequences.tolist(), masks):
            where = f"the sequence of seed {label.episode.seed} in OpenRLHF's batch"
            check_sequence(where, ids, mask, label.sequence.ids, label.sequence.mask[1:])


def _config_of_batch(experiences: Sequence[Any]) -> GemConfig:
    """The config of a batch, whose labels must agree on how advantages are computed."""
    labels = [label for experience in experiences for label in experience.labels]
    for label in labels:
        if not isinstance(label, EpisodeLabel):
            raise ConfigError(
                "a sample was not played by gem, so its turns are unknown; set --train.agent_func_path to gem_openrlhf's "
                f"agent.py, or to a file that imports GemAgentExecutor as AgentExecutor. Label: {str(label)[:80]!r}"
            )
    configs: list[GemConfig] = [label.config for label in labels]
    ways = {
        (config.advantage, config.gamma, str(sorted(config.estimator_kwargs.items())))
        for config in configs
    }
    if len(ways) > 1:
        raise ConfigError(
            f"the data sets differ in how advantages are computed: {sorted(ways)}; write them all with one of these"
        )
    return configs[0]


def _tensor(experience: Any, rows: Sequence[Sequence[float]]) -> Any:
    padded = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return padded


def _returns(episode: Episode, gamma: float) -> list[float]:
    return (
        [0.0] * len(episode.turns) if episode.failed else discounted_returns(episode.rewards, gamma)
    )


def _checked_strategy(get_strategy: Callable[[Any], Any], args: Any) -> Any:
    """OpenRLHF's `get_strategy`, which it calls before any model is loaded, after a check of the settings."""
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
    if _has(flags, name):
        raise ConfigError(
            f"{name} is set, and so is a GemConfig, which writes its own data set; remove one of them"
        )
    flags += [name, str(write_dataset(config, path, evaluation=evaluation))]


def _has(flags: Sequence[str], name: str) -> bool:
    return any(flag == name or flag.startswith(f"{name}=") for flag in flags)
