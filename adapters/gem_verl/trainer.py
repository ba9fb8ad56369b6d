"""Trainer: runs verl with gem's per-turn advantages.

`trainer.v1.trainer_mode` selects gem's trainers: gem_sync, gem_colocate_async, gem_separate_async.
verl computes advantages in `_compute_advantage` and passes only token rewards to its estimators.
gem overrides that method: it computes advantages from the episodes of the batch and, for `gae`, the
critic's values. verl's own method computes importance weights and writes both to its queue.
The other overrides skip batches without trained tokens, fill mini-batches, write records and
metrics, and keep episodes away from the workers that train.

The functions that need verl import it: verl loads gem's plugin, which needs this module, while it
is imported itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from omegaconf import open_dict
from torch.nn.utils.rnn import pad_sequence

from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import ConfigError
from gem_core.plugins.events import send_event
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode
from gem_verl.batch import (
    EPISODES,
    logprob_gap_of,
    mean_per_turn,
    only_tensors,
    put,
    put_per_turn,
    read_batch,
    session_of,
    stored,
)
from gem_verl.checks import fixed_micro_batches
from gem_verl.config import AGENT, PREFIX, GemConfig, check_settings, hydra_config, read_config
from gem_verl.cores import cores_checked
from gem_verl.critic import read_values, training_turn_starts
from gem_verl.mini_batches import deal, optimizer_steps, padded_size
from gem_verl.recorder import Recorder, interrupted_episodes, write_when_free

__all__ = [
    "GemTrainer",
    "check_batch",
    "check_registered",
    "put_advantages",
    "register_trainers",
    "train",
    "with_successes",
]

_KNOWN = "gem_known"
"""The estimator that verl calls instead of gem's: it returns the advantages that gem computed."""
_POLL_SECONDS = 0.05
_CHECKED = ("input_ids", "response_mask", "loss_mask")
_OPTIONAL = {
    "critic_loss": "critic/vf_loss",
    "logprob_gap": "gem/logprob_gap",
    "logprob_gap_p99": "gem/logprob_gap_p99",
}
"""Metrics that the metrics file has if verl computes them, and their names in verl's logger."""


def train(config: GemConfig, settings: Sequence[str]) -> None:
    """Train with verl to the end.

    `settings`: verl's own, the hydra overrides after `python -m verl.trainer.main_ppo`. They
    override `config.overrides()`.
    """
    import ray
    from verl.trainer import main_ppo

    check_registered()
    config = config.with_absolute_paths()  # Ray's workers may run in other folders
    composed = hydra_config(config, settings)
    check_settings(composed, read_config(composed))
    try_environment(config)
    ray_was_running = ray.is_initialized()
    interrupted, unused = False, list[Episode]()
    try:
        with cores_checked(composed):
            main_ppo.main(composed)
    except KeyboardInterrupt:
        interrupted, unused = True, interrupted_episodes()
        raise
    finally:
        if interrupted or not ray_was_running:
            ray.shutdown()  # also ends the run's actors, which hold the GPUs
        write_when_free(config.record, unused)


class GemTrainer:
    """Mixin that gives a V1 trainer gem's advantages.

    To use it in a trainer of your own:
    `@register_trainer("gem_mine") class Mine(GemTrainer, PPOTrainerSync): ...`
    """

    actor_rollout_wg: Any
    critic_wg: Any
    config: Any
    global_steps: int
    use_critic: bool

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
        self._recorder = Recorder(
            self.gem_config.record,
            self.gem_config.max_failed_updates * int(config.data.train_batch_size),
        )
        self._batches: list[BatchMetrics] = []
        """Metrics of this step's batches; verl's separate_async may draw several."""
        self._played = PlayedBatch([], [], [])
        """The batch that verl trains on now."""
        self._mini_batches = [
            (section, int(section.ppo_mini_batch_size))
            for section in (config.actor_rollout_ref.actor, config.critic)
        ]
        self._steps = [1, 1]
        """Optimizer steps of this batch, of the actor and the critic."""
        self._trained_keys: set[str] = set()
        """The keys of this batch's sequences with trained tokens."""
        self._sequences = 0
        """The number of this batch's sequences, without padding."""
        super().__init__(config)  # type: ignore[call-arg]

    def fit(self, agent_loop_manager: Any) -> None:
        """Train as verl does. Record the episodes that the run did not use."""
        try:
            super().fit(agent_loop_manager)  # type: ignore[misc]
        finally:
            self._recorder.close()

    def _build_replay_buffer(self) -> Any:
        """Poll for finished episodes every 50 ms; verl waits 2 s, longer than a short rollout."""
        buffer = super()._build_replay_buffer()  # type: ignore[misc]
        if self.config.trainer.v1.trainer_mode != "separate_async":  # it schedules by the interval
            buffer.poll_interval = _POLL_SECONDS
        self._recorder.watch(buffer)
        return buffer

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Fill verl's mini-batches: see `gem_verl.mini_batches`."""
        samples = int(self.config.actor_rollout_ref.rollout.n)
        masks = zip(batch.keys, stored(batch, "response_mask")["response_mask"])
        self._trained_keys = {key for key, mask in masks if mask.any()}
        self._sequences = len(batch.keys)
        episodes = len(set(map(session_of, self._trained_keys)))
        self._steps = [optimizer_steps(size * samples, episodes) for _, size in self._mini_batches]
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)  # type: ignore[misc]
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        steps = max(self._steps if self.use_critic else self._steps[:1])
        batch.reorder(deal([key in self._trained_keys for key in batch.keys], ranks, steps))
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Return the size of the batch with padding, and set the mini-batches to equal parts."""
        samples = int(self.config.actor_rollout_ref.rollout.n)
        micro_batches = fixed_micro_batches(self.config, self.use_critic)
        unit = math.lcm(samples, *(dp_size * size for size in micro_batches))
        steps = self._steps if self.use_critic else self._steps[:1]
        size = padded_size(self._sequences, steps, unit)
        for (section, _), number in zip(self._mini_batches, steps):
            section.ppo_mini_batch_size = size // number // samples
        return size

    def _counting_trained(self, workers: Any, update: str, steps: int) -> Any:
        """Let the loss of a mini-batch divide by its trained sequences, not by padding as well."""
        original, trained = getattr(workers, update), len(self._trained_keys) / steps

        def update_trained(batch: Any) -> Any:
            batch.extra_info["global_batch_size"] = trained
            return original(batch)

        return patched(workers, update, update_trained)

    def _compute_old_log_prob(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute logprobs as verl does; see `only_tensors`."""
        with only_tensors(batch):
            return super()._compute_old_log_prob(batch, *args, **kwargs)  # type: ignore[misc]

    def _compute_ref_log_prob(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute logprobs of the reference model as verl does."""
        with only_tensors(batch):
            return super()._compute_ref_log_prob(batch, *args, **kwargs)  # type: ignore[misc]

    def _compute_values(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the critic's values as verl does."""
        with only_tensors(batch):
            return super()._compute_values(batch, *args, **kwargs)  # type: ignore[misc]

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        began, seconds_of_verl = time.perf_counter(), 0.0
        config, algorithm = self.gem_config, self.config.algorithm
        fields = stored(batch, EPISODES, *_CHECKED, "rollout_log_probs", "old_log_probs")
        self._played = played = read_batch(batch, fields, values=config.needs_values)
        check_batch(batch, played, fields)
        send_event("batch_end", episodes=played.episodes)
        values = read_values(batch, played) if config.needs_values else None
        per_turn = config.compute_advantages(played.episodes, values=values)
        absolute = per_turn  # `BatchMetrics` takes the absolute values
        gem_estimator = str(algorithm.adv_estimator).startswith(PREFIX)
        trained = any(1 in sequence.mask for sequence in played.sequences)
        compute_of_verl = super()._compute_advantage  # type: ignore[misc]

        def compute(batch: Any, metrics: dict[str, Any]) -> Any:
            nonlocal seconds_of_verl
            verl_began = time.perf_counter()
            batch = compute_of_verl(batch, metrics)
            seconds_of_verl += time.perf_counter() - verl_began
            return batch

        def write(batch: Any, advantages: Any, returns: Any) -> Any:
            with _known_advantages(algorithm, advantages, returns):
                return compute(batch, metrics)

        if trained:
            metrics |= {f"gem/{name}": value for name, value in self._gap(fields).items()}
        if gem_estimator or not trained:
            lengths = [len(mask) for mask in fields["response_mask"]]
            by = write if trained else put  # verl divides by the number of trained tokens
            batch = put_advantages(config, batch, played, per_turn, values, lengths, by)
        else:
            batch = compute(batch, metrics)
            per_turn, absolute = mean_per_turn(batch, played)
        self._recorder.write_trained(batch, played, per_turn, self.global_steps - 1)
        self._batches.append(BatchMetrics.of(played.episodes, absolute))
        metrics |= _shown(self._batches[-1:])
        metrics["timing_s/gem"] = time.perf_counter() - began - seconds_of_verl  # within adv
        return batch

    def _gap(self, fields: Any) -> dict[str, float]:
        """Return the difference between the logprobs of sampler and trainer, if both exist."""
        correction = self.config.algorithm.get("rollout_correction") or {}
        if correction.get("bypass_mode"):  # verl then takes the sampler's as its own
            return {}
        return logprob_gap_of(fields)

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Train the critic where its values are read. Skip a batch without trained tokens."""
        if not self._batches[-1].tokens:
            return batch
        own = self.gem_config.needs_values  # otherwise verl's own `gae`
        masks = training_turn_starts(batch, self._played) if own else nullcontext()
        trained = self._counting_trained(self.critic_wg, "train_mini_batch", self._steps[1])
        with masks, only_tensors(batch), trained:
            return super()._update_critic(batch, metrics)  # type: ignore[misc]

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Skip the update if the batch has no trained tokens."""
        if not self._batches[-1].tokens:
            return batch
        trained = self._counting_trained(self.actor_rollout_wg, "update_actor", self._steps[0])
        with only_tensors(batch), trained:
            return super()._update_actor(batch, metrics)  # type: ignore[misc]

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        total, shown, self._batches = BatchMetrics.total(self._batches), _shown(self._batches), []
        metrics |= shown  # of all batches: verl takes the minimum of names that contain "min"
        if total.tokens:  # verl takes the maximum over trained tokens
            super()._compute_metrics(batch, metrics, *args, **kwargs)  # type: ignore[misc]
        optional = {name: metrics[key] for name, key in _OPTIONAL.items() if key in metrics}
        self._update_log.write(
            self.global_steps - 1,
            total,
            loss=metrics.get("actor/pg_loss"),
            grad_norm=metrics.get("actor/grad_norm"),
            **optional,
        )

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, infos: Any, *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """Add the metrics of each environment of a mixture; count successes as in training."""
        update = super()._val_metrics_update  # type: ignore[misc]

        def metrics_by(sources: Any) -> dict[str, float]:
            counted: dict[str, float] = update(
                sources, sample_uids, with_successes(infos, sources), *args, **kwargs
            )
            return counted

        metrics = metrics_by(data_sources)
        played = [env or source for env, source in zip(infos.get("env", ()), data_sources)]
        if played and played != list(data_sources):
            kwargs.pop("expected_acc_counts", None)  # by data source
            metrics = {**metrics_by(played), **metrics}
        return metrics


def with_successes(infos: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return validation infos in which every finished episode counts for success.

    An episode without a verdict is no success, as in `BatchMetrics`; a source without any verdict
    has no success. `judged` is removed.
    """
    infos = dict(infos)
    judged = infos.pop("judged", None)
    if judged is not None:
        known = {source for source, verdict in zip(sources, judged) if verdict}
        infos["success"] = [
            (success or 0.0) if source in known and verdict is not None else None
            for source, success, verdict in zip(sources, infos["success"], judged)
        ]
    return infos


def put_advantages(
    config: GemConfig,
    batch: Any,
    played: PlayedBatch,
    per_turn: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]] | None = None,
    lengths: Sequence[int] | None = None,
    write: Callable[..., Any] = put,
) -> Any:
    """Write gem's advantages to verl's queue: one number per token, 0 on untrained tokens.

    Also writes the returns; with a critic's `values`, they are its targets. `lengths`: those of the
    responses, if they are known. `write` writes the tensors. Returns the batch.
    """
    returns = played.returns(config, values)
    return put_per_turn(batch, played, lengths, write, advantages=per_turn, returns=returns)


def check_batch(batch: Any, played: PlayedBatch, fields: Any = None) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks.

    Padding sequences must not be trained. `fields`: those of the batch, if they were read before.
    """
    fields = stored(batch, *_CHECKED) if fields is None else fields
    columns = ([tensor.tolist() for tensor in fields[name]] for name in _CHECKED)
    for i, (key, ids, *masks) in enumerate(zip(batch.keys, *columns)):
        # the loss masks with one, divides by the other
        different = masks if masks[0] != masks[1] else masks[:1]
        for name, mask in zip(_CHECKED[1:], different):
            played.check_sequence(i, ids, mask, f"sequence {key} of verl's batch ({name})")


def check_registered() -> None:
    """Raise `ConfigError` unless verl has loaded gem's plugin; verl swallows plugin errors."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    registries = {
        AGENT: _agent_loop_registry,
        "gem_rebn": ADV_ESTIMATOR_REGISTRY,
        "gem_sync": TRAINER_REGISTRY,
        "torch_varlen": ALL_ATTENTION_FUNCTIONS,
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
    from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, register_trainer

    for name, trainer in (
        ("sync", PPOTrainerSync),
        ("colocate_async", PPOTrainerColocateAsync),
        ("separate_async", PPOTrainerSeparateAsync),
    ):
        if PREFIX + name not in TRAINER_REGISTRY:
            gem_trainer = type(f"Gem{trainer.__name__}", (GemTrainer, trainer), {})
            register_trainer(PREFIX + name)(gem_trainer)


def _shown(batches: Sequence[BatchMetrics]) -> dict[str, float]:
    """Return the metrics of a step for verl's logger."""
    means = BatchMetrics.total(batches).means()
    return {f"gem/{name}": value for name, value in means.items()}


@contextmanager
def _known_advantages(
    algorithm: Any, advantages: Sequence[Any], returns: Sequence[Any]
) -> Iterator[None]:
    """Select an estimator that returns these tensors, one per sequence, inside the block."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    known = tuple(pad_sequence(list(field), batch_first=True) for field in (advantages, returns))
    before, algorithm.adv_estimator = algorithm.adv_estimator, _KNOWN
    ADV_ESTIMATOR_REGISTRY[_KNOWN] = lambda **_: known
    try:
        yield
    finally:
        algorithm.adv_estimator = before
        del ADV_ESTIMATOR_REGISTRY[_KNOWN]
