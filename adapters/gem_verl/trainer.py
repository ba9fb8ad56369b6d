"""Trainer: runs verl with gem's per-turn advantages.

`trainer.v1.trainer_mode` selects gem's trainers: gem_sync, gem_colocate_async, gem_separate_async.
verl computes advantages in `_compute_advantage` and passes only token rewards to its estimators.
gem overrides that method: it calls verl's own, which computes importance weights, then replaces the
advantages. It computes them from the episodes, which travel with their sequences in
`extra_fields`. Everything else is verl's own code.

The functions that need verl import it: verl loads gem's plugin, which needs this module, while it
is imported itself.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import open_dict

from gem_core.adapter_kit.batch import check_sequence
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import BatchMismatchError, ConfigError
from gem_core.plugins.events import send_event
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import TokenSequence, discounted_returns, padding_sequence
from gem_core.types import Episode
from gem_verl.config import AGENT, PREFIX, GemConfig, check_settings, hydra_config, read_config
from gem_verl.convert import per_token, response_start, sequences_of

__all__ = [
    "GemTrainer",
    "check_batch",
    "check_registered",
    "put_advantages",
    "read_batch",
    "register_trainers",
    "train",
]

_ZERO = "gem_zero"
"""The estimator that verl calls before gem replaces the advantages: it returns 0."""
_POLL_SECONDS = 0.05


def train(config: GemConfig, settings: Sequence[str]) -> None:
    """Train with verl to the end.

    `settings`: verl's own, the hydra overrides after `python -m verl.trainer.main_ppo`. They
    override `config.overrides()`.
    """
    import ray
    from verl.trainer import main_ppo

    check_registered()
    record, metrics = (
        None if path is None else os.path.abspath(path) for path in (config.record, config.metrics)
    )
    # absolute paths, because Ray's workers may run in other folders
    config = replace(config, record=record, metrics=metrics)
    composed = hydra_config(config, settings)
    check_settings(composed, read_config(composed))
    ray_was_running = ray.is_initialized()
    try:
        main_ppo.main(composed)
    finally:
        if not ray_was_running:
            ray.shutdown()


class GemTrainer:
    """Mixin that gives a V1 trainer gem's advantages.

    To use it in a trainer of your own:
    `@register_trainer("gem_mine") class Mine(GemTrainer, PPOTrainerSync): ...`
    """

    config: Any
    global_steps: int

    def __init__(self, config: Any) -> None:
        check_registered()
        with open_dict(config):
            v1 = config.trainer.v1
            # verl compares the mode with its own names in many places
            v1.trainer_mode = str(v1.trainer_mode).removeprefix(PREFIX)
            v1.gem_trainer = True
        self.gem_config = read_config(config)
        check_settings(config, self.gem_config)
        self._update_log = UpdateLog.of(self.gem_config)
        self._batches: list[BatchMetrics] = []
        """Metrics of this step's batches; verl's separate_async may draw several."""
        super().__init__(config)  # type: ignore[call-arg]

    def _build_replay_buffer(self) -> Any:
        """Poll for finished episodes every 50 ms; verl waits 2 s, longer than a short rollout."""
        buffer = super()._build_replay_buffer()  # type: ignore[misc]
        if self.config.trainer.v1.trainer_mode != "separate_async":  # it schedules by the interval
            buffer.poll_interval = _POLL_SECONDS
        return buffer

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        played = read_batch(batch)
        check_batch(batch, played.sequences)
        send_event("batch_end", episodes=played.episodes)
        total = BatchMetrics.of(played.episodes)
        per_turn = self.gem_config.compute_advantages(played.episodes)
        algorithm = self.config.algorithm
        gem_estimator = str(algorithm.adv_estimator).startswith(PREFIX)
        if total.tokens:  # verl divides by the number of trained tokens
            with _estimator(algorithm, _ZERO if gem_estimator else algorithm.adv_estimator):
                batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        if gem_estimator or not total.tokens:
            batch = put_advantages(self.gem_config, batch, played, per_turn)
        else:
            per_turn = _mean_per_turn(batch, played)
        self._batches.append(BatchMetrics.of(played.episodes, per_turn))
        means = BatchMetrics.total(self._batches).means()
        metrics |= {f"gem/{name}": value for name, value in means.items()}
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Skip the update if the batch has no trained tokens."""
        return super()._update_actor(batch, metrics) if self._batches[-1].tokens else batch  # type: ignore[misc]

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        total, self._batches = BatchMetrics.total(self._batches), []
        if total.tokens:  # verl takes the maximum over trained tokens
            super()._compute_metrics(batch, metrics, *args, **kwargs)  # type: ignore[misc]
        step, schedule = self.global_steps - 1, self.gem_config.schedule
        self._update_log.write(
            step,
            total,
            loss=metrics.get("actor/pg_loss"),
            grad_norm=metrics.get("actor/grad_norm"),
            **({} if schedule is None else {"horizon": schedule(step)}),
        )


@dataclass(frozen=True)
class PlayedBatch:
    """The played sequences of a batch in verl's queue, in the batch's order, and their episodes."""

    episodes: list[Episode]
    sequences: list[TokenSequence]
    episode_of: list[int | None]
    """The index of each sequence's episode; None for verl's padding sequences."""


def read_batch(batch: Any) -> PlayedBatch:
    """Read the episodes that travel with the sequences of a batch.

    verl's keys are {uid}_{session}_{number}. The sequences of a session belong to one episode; the
    first one carries it.
    """
    stored = _stored(batch, "extra_fields")["extra_fields"]
    pickled = [getattr(fields, "data", fields).get("gem") for fields in stored]
    padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
    sessions = {
        key.rpartition("_")[0]: i
        for i, key in enumerate(batch.keys)
        if pickled[i] and not padding[i]
    }
    episodes = [pickle.loads(pickled[i]) for i in sessions.values()]
    index_of = {session: index for index, session in enumerate(sessions)}
    expected = [sequences_of(episode, 0) for episode in episodes]
    sequences, episode_of, missing = [], [], [len(of_episode) for of_episode in expected]
    for key, is_padding in zip(batch.keys, padding):
        session, _, number = key.rpartition("_")
        index = None if is_padding else index_of.get(session)
        if not is_padding and (index is None or int(number) >= len(expected[index])):
            raise BatchMismatchError(
                f"sequence {key} of verl's batch does not belong to an episode of gem; play all "
                "dataset rows with gem's agent loop: remove agent_name from the rows, and set "
                f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT}"
            )
        episode_of.append(index)
        sequences.append(padding_sequence((), 0) if index is None else expected[index][int(number)])
        if index is not None:
            missing[index] -= 1
    if any(missing):
        raise BatchMismatchError(
            f"verl's batch lacks {sum(missing)} sequences of its episodes; use a version of verl "
            "that the adapter supports, without patches to its replay buffer"
        )
    return PlayedBatch(episodes, sequences, episode_of)


def put_advantages(
    config: GemConfig, batch: Any, played: PlayedBatch, per_turn: Sequence[Sequence[float]]
) -> Any:
    """Replace verl's advantages with gem's: one number per token, 0 on untrained tokens.

    Writes advantages and returns to verl's queue. Returns the updated batch.
    """
    from tensordict import TensorDict

    returns = [discounted_returns(episode.rewards, config.gamma) for episode in played.episodes]
    fields = {}
    for name, numbers in (("advantages", per_turn), ("returns", returns)):
        tensors = [
            torch.tensor(per_token(s, () if i is None else numbers[i]), dtype=torch.float32)
            for s, i in zip(played.sequences, played.episode_of)
        ]
        fields[name] = torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
    return tq.kv_batch_put(
        keys=batch.keys,
        partition_id=batch.partition_id,
        fields=TensorDict(fields, batch_size=len(batch.keys)),
    )


def check_batch(batch: Any, sequences: Sequence[TokenSequence]) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks.

    Padding sequences must not be trained.
    """
    stored = _stored(batch, "input_ids", "response_mask", "loss_mask")
    for name in ("response_mask", "loss_mask"):  # the loss masks with one, divides by the other
        for key, sequence, ids, mask in zip(
            batch.keys, sequences, stored["input_ids"], stored[name]
        ):
            ids, mask = ids.tolist(), [0] * (len(ids) - len(mask)) + mask.tolist()
            played = (sequence.ids, sequence.mask) if sequence.trained else (ids, [0] * len(ids))
            check_sequence(f"sequence {key} of verl's batch ({name})", ids, mask, *played)


def check_registered() -> None:
    """Raise `ConfigError` unless verl has loaded gem's plugin; verl swallows plugin errors."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    registries = {
        AGENT: _agent_loop_registry,
        "gem_rebn": ADV_ESTIMATOR_REGISTRY,
        "gem_sync": TRAINER_REGISTRY,
    }
    missing = [name for name, registry in registries.items() if name not in registry]
    if missing:
        raise ConfigError(
            f"verl does not know {', '.join(missing)}, because it has not loaded the plugin entry "
            "point `gem`. If the plugin failed, `python -c 'import verl'` shows why. Otherwise "
            "VERL_USE_EXTERNAL_PLUGINS excludes it, or gem is on the path but not installed; "
            "set VERL_USE_EXTERNAL_MODULES=gem_verl.plugin"
        )


def register_trainers() -> None:
    """Register gem's versions of verl's three trainers."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
    from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, register_trainer

    if _ZERO not in ADV_ESTIMATOR_REGISTRY:
        register_adv_est(_ZERO)(_zero)
    for name, trainer in (
        ("sync", PPOTrainerSync),
        ("colocate_async", PPOTrainerColocateAsync),
        ("separate_async", PPOTrainerSeparateAsync),
    ):
        if PREFIX + name not in TRAINER_REGISTRY:
            gem_trainer = type(f"Gem{trainer.__name__}", (GemTrainer, trainer), {})
            register_trainer(PREFIX + name)(gem_trainer)


def _stored(batch: Any, *fields: str) -> Any:
    """Read fields of a batch from verl's queue."""
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


def _zero(response_mask: Any, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = torch.zeros_like(response_mask, dtype=torch.float32)
    return zeros, zeros.clone()


@contextmanager
def _estimator(algorithm: Any, name: str) -> Iterator[None]:
    """Select another estimator inside the block."""
    before, algorithm.adv_estimator = algorithm.adv_estimator, name
    try:
        yield
    finally:
        algorithm.adv_estimator = before


def _mean_per_turn(batch: Any, played: PlayedBatch) -> list[list[float]]:
    """Return the mean of abs(advantage) over the tokens of each turn.

    With verl's own estimators, the tokens of a turn may have different advantages.
    """
    per_turn = [[0.0] * len(episode.turns) for episode in played.episodes]
    stored = _stored(batch, "advantages")["advantages"]
    for sequence, index, advantages in zip(played.sequences, played.episode_of, stored):
        offset = response_start(sequence)
        for turn, start, end in sequence.spans:
            of_turn = advantages[start - offset : end - offset]
            per_turn[index or 0][turn] = float(of_turn.abs().mean())
    return per_turn
