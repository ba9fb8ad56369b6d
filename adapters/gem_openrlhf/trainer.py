"""Trainer: runs OpenRLHF with gem's per-turn advantages.

OpenRLHF computes advantages in `RemoteExperienceMaker.compute_advantages_and_returns`, in one
process for all ranks, and has no hook for them. gem overrides that method in `GemExperienceMaker`.

OpenRLHF has no setting for a trainer class, but its driver looks up its actors by name before it
starts them in other processes. `train` replaces these names with subclasses during the run, and
patches nothing in the workers:

| OpenRLHF               | gem                 | what the subclass adds                            |
|------------------------|---------------------|---------------------------------------------------|
| `PPOTrainer`           | `GemPPOTrainer`     | `GemExperienceMaker`, `GemSamplesGenerator`       |
| `TrainingActor`        | `GemTrainingActor`  | `GemExperienceMaker`, for async training          |
| `GenerateSamplesActor` | `GemGenerateActor`  | `GemSamplesGenerator`, for async training         |
| `RolloutRayActor`      | `GemRolloutActor`   | the update number, for horizons and versions      |
| `PolicyModelActor`     | `GemPolicyActor`    | no step on a mini-batch without trained tokens    |
| `CriticModelActor`     | `GemCriticActor`    | one value per turn                                |
| `get_strategy`         | `_checked_strategy` | `check_settings`, after the flags are parsed      |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import openrlhf.utils
import ray
import torch
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray import ppo_actor, ppo_critic, vllm_engine
from torch.nn.utils.rnn import pad_sequence

from gem_core.adapter_kit.batch import check_sequence
from gem_core.adapter_kit.critic import critic_targets
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.settings import reject
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError, ConfigError, UnknownNameError
from gem_core.plugins.events import send_event
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode
from gem_openrlhf.actors import GemCriticActor, GemPolicyActor, GemRolloutActor, class_of
from gem_openrlhf.config import GemConfig, check_settings, config_of, estimator_flag
from gem_openrlhf.convert import EpisodeLabel, all_sequences, at_turn_starts, per_token
from gem_openrlhf.dataset import first_label
from gem_openrlhf.experiences import (
    batch_config,
    batch_labels,
    batch_logprob_gap,
    batch_values,
    padded,
)
from gem_openrlhf.program import add_dataset, ending_actors, has_flag, run_program
from gem_openrlhf.records import find_recorder, recording
from gem_openrlhf.samples import GemSamplesGenerator

__all__ = [
    "GemExperienceMaker",
    "GemGenerateActor",
    "GemPPOTrainer",
    "GemTraining",
    "GemTrainingActor",
    "check_batch",
    "put_advantages",
    "train",
]

_AGENT = Path(__file__).with_name("agent.py")
_LOGGED = {
    "loss": "policy_loss",
    "grad_norm": "actor_grad_norm",
    "kl": "kl",
    "vllm_kl": "vllm_kl",
    "critic_loss": "critic_loss",
    "values": "values",
    "logprob_gap": "gem/logprob_gap",
    "logprob_gap_p99": "gem/logprob_gap_p99",
}
"""Names in the metrics file, and OpenRLHF's names of the same numbers."""


def train(
    config: GemConfig | None, settings: Sequence[str], data: str | Path = "gem_data.jsonl"
) -> None:
    """Train with OpenRLHF to the end.

    `settings`: OpenRLHF's own, the command-line flags of `train_ppo_ray`. `data`: the path to write
    the dataset to; all nodes must be able to read it. `config`: None if `--data.prompt_dataset`
    names a dataset that `write_dataset` wrote. The run's Ray actors end with it, also by Ctrl-C; a
    Ray that was running before keeps running.
    """
    flags, path = list(settings), Path(data).absolute()
    reject(
        [
            (
                has_flag(flags, name),
                f"{name}: rewards come from the environment, and OpenRLHF ignores the flag with "
                "an agent; remove it, and change rewards in a wrapper around the environment",
            )
            for name in ("--reward.remote_url", "--reward.model_name_or_path")
        ]
    )
    if config is not None:
        add_dataset(flags, "--data.prompt_dataset", config, path)
        if config.held_out_seeds:
            add_dataset(
                flags, "--eval.dataset", config, path.with_suffix(".eval.jsonl"), evaluation=True
            )
    for name, value in (
        ("--train.agent_func_path", str(_AGENT)),
        ("--data.input_key", "input"),
        ("--data.label_key", "label"),
        ("--algo.advantage.estimator", estimator_flag(config)),
    ):
        if not has_flag(flags, name):
            flags += [name, value]
    with ExitStack() as stack:
        if ray.is_initialized():
            stack.enter_context(ending_actors())
        else:
            stack.callback(ray.shutdown)
        for owner, name, replacement, parameters in _REPLACED:
            stack.enter_context(patched(owner, name, replacement, parameters))
        run_program(flags, partial(_checked_strategy, openrlhf.utils.get_strategy, stack))


class GemExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with per-turn advantages by the estimator of the `GemConfig`."""

    step = 0
    """The number of the update."""
    config: GemConfig | None = None
    """The config of the last batch."""
    last_batch: BatchMetrics | None = None
    """The metrics of the last batch's episodes."""
    last_gap: Mapping[str, float] = {}
    """The difference of the engine's and the trainer's logprobs in the last batch."""

    def make_experience_batch(self, rollout_samples: list[Any]) -> list[Any]:
        """Make experiences of all sequences."""
        args = self.strategy.args
        multiple = math.lcm(args.train.batch_size, self._ranks())
        samples = all_sequences(rollout_samples, multiple, args.data.max_len)
        several = any(getattr(sample.labels[0], "number", 0) > 0 for sample in samples)
        if several and args.train.dynamic_batch_enable:
            raise ConfigError(
                "an episode has several sequences because its context was rewritten, and "
                "--train.dynamic_batch_enable would drop some of them; remove the flag"
            )
        return list(super().make_experience_batch(samples))

    def split_rollout_samples(self, rollout_samples: list[Any]) -> list[Any]:
        """Split samples as OpenRLHF does, but into parts that all ranks get equally many of."""
        rollout, ranks = self.args.rollout, self._ranks()
        size = rollout.micro_batch_size
        if ranks > 1 and not len(rollout_samples) % ranks:
            rollout.micro_batch_size = math.gcd(size, len(rollout_samples) // ranks)
        try:
            return list(super().split_rollout_samples(rollout_samples))
        finally:
            rollout.micro_batch_size = size

    def _ranks(self) -> int:
        """Return a number of parts that every group of processes divides into equal shares."""
        groups = (self.actor_model_group, self.critic_model_group, self.initial_model_group)
        sizes = (len(g._actor_handlers) // g.duplicate_actors for g in groups if g is not None)
        return math.lcm(*sizes)

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
        self.config = batch_config(experiences)
        last_values = None
        if self.critic_model_group is not None:
            last_values = self._last_values(batch_labels(experiences))
        self.last_gap = batch_logprob_gap(experiences)
        self.last_batch = put_advantages(experiences, self.step, last_values)
        return experiences

    def _last_values(self, labels: Sequence[EpisodeLabel]) -> dict[str, float]:
        """Return the critic's value of the last state of each cut episode, by its key."""
        args, group = self.strategy.args, self.critic_model_group
        states = {label.key: label.cut_state for label in labels if label.cut_state}
        listed, size = list(states.values()), args.rollout.micro_batch_size
        if not listed:
            return {}
        batches = [listed[i : i + size] for i in range(0, len(listed), size)]
        ranks = len(group._actor_handlers) // group.duplicate_actors
        # sharded weights need the same number of forward passes on all ranks
        batches += [batches[0]] * (-len(batches) % ranks)
        # the critic has no value after the last token of a sequence, so each state gets one more
        rows = [[torch.tensor([*state, state[-1]]) for state in batch] for batch in batches]
        sequences = [pad_sequence(batch, batch_first=True) for batch in rows]
        masks = [
            pad_sequence([torch.ones_like(row) for row in batch], batch_first=True)
            for batch in rows
        ]
        references = self._dispatch_forward(
            group,
            args.train.colocate_all or args.train.colocate_critic_reward,
            sequences=sequences,
            action_mask=[mask[:, 1:] for mask in masks],
            attention_mask=masks,
        )
        results = self._flatten_results(references, group.duplicate_actors)
        values = [row for batch in results for row in batch]
        return {
            key: float(row[len(state) - 1]) for (key, state), row in zip(states.items(), values)
        }


class GemTraining(ppo_trainer.BasePPOTrainer):
    """Base of gem's two trainers, sync and async: gem's advantages and metrics."""

    gem_step = 0
    """Finished updates."""
    gem_log: UpdateLog | None = None
    experience_maker: Any
    _gem_start = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # OpenRLHF constructs the experience maker inside its own constructor
        self.experience_maker.__class__ = GemExperienceMaker

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Read the number of finished updates of a resumed run."""
        states: dict[str, Any] = super().init_checkpoint_states()
        self.gem_step, self._gem_start = int(states["global_step"]), time.monotonic()
        return states

    def train_step(
        self, rollout_samples: list[Any], global_step: int
    ) -> tuple[dict[str, Any], int]:
        """Train one update and add gem's metrics to OpenRLHF's status."""
        self.gem_step = global_step + 1
        self.experience_maker.step, self.experience_maker.last_batch = global_step, None
        status, next_step = super().train_step(rollout_samples, global_step)
        batch: BatchMetrics = self.experience_maker.last_batch
        metrics = {
            **batch.means(),
            **self.experience_maker.last_gap,
            "tokens": float(batch.tokens),
        }
        return {**status, **{f"gem/{name}": value for name, value in metrics.items()}}, next_step

    def ppo_train(self, global_steps: int) -> dict[str, Any]:
        """Train as OpenRLHF does; skip a batch without trained tokens.

        An optimizer step with a gradient of 0 would still move the weights by its momentum.
        """
        batch = self.experience_maker.last_batch
        if batch is None:
            raise BatchMismatchError(
                "OpenRLHF made an update without gem's advantages: it did not call "
                "compute_advantages_and_returns; use a version of OpenRLHF that the adapter "
                "supports"
            )
        if not batch.tokens:
            _skip_update(self.actor_model_group)
            _skip_update(self.critic_model_group)
            return {}
        status = dict(super().ppo_train(global_steps))
        if global_steps <= self.args.critic.freezing_steps:
            # OpenRLHF would keep the batch, and train a frozen actor on it later
            _skip_update(self.actor_model_group)
        return status

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
        if self.gem_log is None:  # the config travels in the labels of a batch
            self.gem_log = UpdateLog.of(self.experience_maker.config, since=self._gem_start)
        logs = logs_dict or {}
        numbers = {name: logs[key] for name, key in _LOGGED.items() if key in logs}
        self.gem_log.write(global_step - 1, self.experience_maker.last_batch, **numbers)


@ray.remote
class GemPPOTrainer(class_of(ppo_trainer.PPOTrainer), GemTraining):  # type: ignore[misc]
    """OpenRLHF's sync trainer: plays and trains alternately."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        GemSamplesGenerator.replace(self.samples_generator)
        self.max_steps = optimizer_steps(len(self.prompts_dataloader.dataset), self.args)

    def evaluate(self, global_step: int, **kwargs: Any) -> dict[str, Any]:
        """Evaluate as OpenRLHF does, and log gem's metrics of the episodes."""
        logs = super().evaluate(global_step, **kwargs)
        metrics = self.samples_generator.evaluation_metrics()
        for logger in (self.wandb_logger, self.tensorboard_logger):
            if logger:
                logger.log_eval(global_step, metrics)
        return {**logs, **metrics}


@ray.remote
class GemTrainingActor(class_of(ppo_trainer_async.TrainingActor), GemTraining):  # type: ignore[misc]
    """OpenRLHF's async trainer: trains while another actor plays."""


@ray.remote
class GemGenerateActor(class_of(ppo_trainer_async.GenerateSamplesActor)):  # type: ignore[misc]
    """OpenRLHF's async player."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        GemSamplesGenerator.replace(self.samples_generator)
        self.max_steps = optimizer_steps(len(self.prompts_dataloader.dataset), self.args)

    def _run_eval(self) -> dict[str, Any]:
        """Evaluate as OpenRLHF does, and add gem's metrics of the episodes."""
        return {**super()._run_eval(), **self.samples_generator.evaluation_metrics()}


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
    (ppo_critic, "CriticModelActor", GemCriticActor, "world_size rank master_addr master_port"),
)
"""(module, name, replacement, parameters of the original constructor)."""


def optimizer_steps(prompts: int, args: Any) -> int:
    """Return the optimizer steps of a run, for the learning rate schedule.

    OpenRLHF does not count the steps of incomplete batches.
    """
    batches = [args.rollout.batch_size] * (prompts // args.rollout.batch_size)
    rest = prompts % args.rollout.batch_size
    samples = (count * args.rollout.n_samples_per_prompt for count in (*batches, rest))
    steps = sum(math.ceil(count / args.train.batch_size) for count in samples)
    return int(steps * args.train.num_episodes * args.train.max_epochs)


def put_advantages(
    experiences: Sequence[Any], update: int = 0, last_values: Mapping[str, float] | None = None
) -> BatchMetrics:
    """Write gem's advantages and returns: one number per token, 0 on untrained tokens.

    Statistics cover all ranks. `last_values`: the critic's values at the ends of cut episodes, by
    their keys; None without a critic. Records the episodes and returns their metrics.
    """
    config = batch_config(experiences)
    check_batch(experiences)
    played = {label.key: label for label in batch_labels(experiences)}
    episodes = [label.episode for label in played.values()]
    send_event("batch_end", episodes=episodes)
    values, place = None, per_token
    returns = [_returns(episode, config.gamma) for episode in episodes]
    if last_values is not None:
        values = batch_values(experiences, played, last_values)
        returns, place = critic_targets(config, episodes, values), at_turn_starts
    per_turn = dict(zip(played, config.compute_advantages(episodes, values=values)))
    returns_of = dict(zip(played, returns))
    for experience in experiences:
        labels: list[EpisodeLabel] = experience.labels
        experience.advantages = padded(
            experience, [per_token(label.sequence, per_turn[label.key]) for label in labels]
        )
        experience.returns = padded(
            experience, [place(label.sequence, returns_of[label.key]) for label in labels]
        )
        experience.info["return"] = torch.tensor(
            [0.0 if label.number < 0 else label.episode.total_reward or 0.0 for label in labels]
        )
        experience.labels = [label.label for label in labels]
        experience.kl = None  # as in OpenRLHF's own method: only rewards would use it
    recorder = find_recorder()
    if recorder is not None:
        ray.get(recorder.write_trained.remote(update, per_turn))
    return BatchMetrics.of(episodes, list(per_turn.values()))


def check_batch(experiences: Sequence[Any]) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    for experience in experiences:
        masks = experience.action_mask.long().tolist()
        for label, ids, mask in zip(experience.labels, experience.sequences.tolist(), masks):
            where = f"the sequence of seed {label.episode.seed} in OpenRLHF's batch"
            check_sequence(where, ids, mask, label.sequence.ids, label.sequence.mask[1:])


def _skip_update(group: Any) -> None:
    """Make the ranks of a group forget the current batch; None as `group` does nothing."""
    if group is not None:
        ray.get(group.async_run_method(method_name="skip_update"))


def _returns(episode: Episode, gamma: float) -> list[float]:
    """Return the discounted return of each turn; 0 for a failed episode."""
    if episode.failed:
        return [0.0] * len(episode.turns)
    return discounted_returns(episode.rewards, gamma)


def _checked_strategy(get_strategy: Callable[[Any], Any], stack: ExitStack, args: Any) -> Any:
    """Check the settings and the environment, then call OpenRLHF's `get_strategy`.

    No model is loaded yet.
    """
    label = first_label(args.data)
    try:
        config = None if label is None else config_of(label)
    except UnknownNameError:  # an environment that only the agent file registers
        config = None
    check_settings(args, config, int(ray.cluster_resources().get("GPU", 0)))
    if config is not None:
        try_environment(replace(config, seeds=[config.task_of(label).seed or 0]))
    stack.enter_context(recording())
    return get_strategy(args)
