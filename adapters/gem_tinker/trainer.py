"""Trainer: the training loop on Tinker's clients, and gem's advantages in each Datum."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, compress
from typing import Any

import httpx
import tinker
from tinker.lib.base_url import resolve_base_url

from gem_core.adapter_kit.batch import as_evaluated, as_trained, check_sequence
from gem_core.adapter_kit.progress import read_checkpoint, seeds_of_update, write_checkpoint
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import ConfigError
from gem_core.records.file import WorkerRecords
from gem_core.training.metrics import BatchMetrics, logprob_gap
from gem_core.types import Episode
from gem_tinker.config import GemConfig, TinkerSettings, check_settings
from gem_tinker.convert import Row, to_batch
from gem_tinker.rollout import GemRollout

__all__ = ["GemTinkerTrainer", "check_batch", "connect", "put_advantages", "train"]


def train(config: GemConfig, settings: TinkerSettings) -> GemTinkerTrainer:
    """Train with Tinker to the end, from the run's last checkpoint if there is one."""
    trainer = GemTinkerTrainer(config, settings)
    trainer.train()
    return trainer


class GemTinkerTrainer:
    """Plays batches of episodes, trains on them, and saves checkpoints."""

    def __init__(self, config: GemConfig, settings: TinkerSettings) -> None:
        """Connect to the service; create the model there, or load the last checkpoint."""
        check_settings(settings, config)
        self.config, self.settings = config, settings
        self._same = _same(settings, config)
        checkpoint = read_checkpoint(settings.out, settings.updates, **self._same)
        self.updates: int = checkpoint.get("updates", 0)
        """The number of finished updates."""
        try_environment(config)
        self.service, max_context = connect(settings)
        if checkpoint:
            resume = self.service.create_training_client_from_state_with_optimizer
            self.client = resume(checkpoint["state_path"])
        else:
            create = self.service.create_lora_training_client
            self.client = create(settings.model, settings.rank, settings.seed)
        self.rollout = GemRollout(config, self.client.get_tokenizer(), max_context, settings.seed)
        self._log, self._records = UpdateLog.of(config), WorkerRecords("0")

    def train(self) -> None:
        """Train to the last update and end the session; the trainer cannot be used again."""
        with (
            self.service,
            closing(self._records),
            self.rollout.engine,
            ThreadPoolExecutor(1) as background,
        ):
            try:
                sampler = self.client.save_weights_and_get_sampling_client()
                self.rollout.policy.sampler = sampler, self.updates
                episodes = self._play(self.updates)
                while self.updates < self.settings.updates:
                    episodes = self._update(episodes, background)
            finally:
                self.rollout.engine.stop()  # the batch that is being played in the background

    def _update(self, episodes: list[Episode], background: ThreadPoolExecutor) -> list[Episode]:
        """Train on a batch, and return the next one; after the last update, return []."""
        update, settings = self.updates, self.settings
        last = update + 1 == settings.updates
        following: Future[list[Episode]] | None = None
        if settings.one_step_off and not last:  # with the weights before this update
            following = background.submit(self._play, update + 1)
        rows, per_turn = put_advantages(self.config, episodes)
        check_batch(rows)
        sampler, numbers = self._train_on(rows)
        trained = [as_trained(e, a, update) for e, a in zip(episodes, per_turn)]
        self._records.write(self.config.record, trained)
        ahead = [] if following is None else following.result()
        self.updates += 1
        self.rollout.policy.sampler = sampler, self.updates
        if settings.eval_every and self.updates % settings.eval_every == 0:
            numbers |= self._evaluate()
        self._log.write(update, BatchMetrics.of(episodes, per_turn), **numbers)
        if last or (settings.save_every and self.updates % settings.save_every == 0):
            self._save()
        return ahead if last or ahead else self._play(self.updates)

    def _train_on(self, rows: Sequence[Row]) -> tuple[Any, dict[str, float | None]]:
        """Train on a batch; return a client that samples from the new weights, and metrics.

        All requests are sent before a result is awaited, so the service runs them without a pause.
        Sequences without an advantage are not sent: the service charges for them, and its losses
        are sums over tokens, so they add 0. If none is left, there is no optimizer step either: it
        would apply old momentum.
        """
        settings, client = self.settings, self.client
        tokens = sum(sum(sequence.mask) for sequence, _ in rows)
        rows = [row for row in rows if any(row[1].loss_fn_inputs["advantages"].data)]
        adam = tinker.AdamParams(learning_rate=settings.learning_rate, **settings.adam)
        parts = [rows[i :: settings.substeps] for i in range(min(settings.substeps, len(rows)))]
        sent = []
        for part in parts:
            data = [datum for _, datum in part]
            loss = client.forward_backward(data, settings.loss, dict(settings.loss_config))
            sent.append((loss, client.optim_step(adam)))
        sampler = client.save_weights_and_get_sampling_client()
        if not sent:
            return sampler, {"loss": 0.0, "grad_norm": 0.0} if tokens else {}
        outputs, steps = zip(*((loss.result(), step.result()) for loss, step in sent))
        mask = list(chain(*(sequence.mask[1:] for sequence, _ in parts[0])))
        sampled = chain(*(datum.loss_fn_inputs["logprobs"].data for _, datum in parts[0]))
        own = chain(*(output["logprobs"].data for output in outputs[0].loss_fn_outputs))
        return sampler, {
            "loss": sum(output.metrics["loss:sum"] for output in outputs) / tokens,
            "grad_norm": (steps[-1].metrics or {}).get("grad_norm"),
            **logprob_gap(compress(sampled, mask), compress(own, mask)),
        }

    def _play(self, update: int) -> list[Episode]:
        own, seeds = self.settings, self.config.train_seeds
        batch = seeds_of_update(seeds, update, own.batch_size, own.samples, own.seed)
        return self.rollout.episodes(batch, update)

    def _evaluate(self) -> dict[str, float]:
        episodes = self.rollout.episodes(self.config.held_out_seeds, self.updates, evaluation=True)
        self._records.write(self.config.record, map(as_evaluated, episodes))
        means = BatchMetrics.of(episodes).means()
        return {f"eval_{name}": means[name] for name in ("success", "return") if name in means}

    def _save(self) -> None:
        """Save a checkpoint to resume from, and the weights to sample from."""
        name = f"update-{self.updates}"
        state, weights = self.client.save_state(name), self.client.save_weights_for_sampler(name)
        paths = {"state_path": state.result().path, "sampler_path": weights.result().path}
        write_checkpoint(self.settings.out, self.updates, **self._same, **paths)


def _same(settings: TinkerSettings, config: GemConfig) -> dict[str, Any]:
    """Return the settings that a resumed run must share: those of the model and of the batches."""
    names = ("model", "rank", "batch_size", "samples", "seed")
    batches = {"env_id": config.env_id, "seeds": config.train_seeds}
    return {**{name: getattr(settings, name) for name in names}, **batches}


def connect(settings: TinkerSettings) -> tuple[tinker.ServiceClient, int | None]:
    """Return a client of the service, and the context length of the model."""
    url = resolve_base_url(settings.base_url)
    try:
        httpx.get(f"{url}/api/v1/healthz", timeout=10.0)  # the client would try for five minutes
        service = tinker.ServiceClient(base_url=url)
        models = service.get_server_capabilities().supported_models
    except (httpx.TransportError, httpx.InvalidURL, tinker.TinkerError) as error:
        raise ConfigError(
            f"Tinker at {url} gave no access: {error}. Check base_url or TINKER_BASE_URL, and set "
            "TINKER_API_KEY to a valid key, or store one with `tinker auth login`"
        ) from error
    lengths = {str(m.model_name): m.max_context_length for m in models if m.trainable is not False}
    if settings.model not in lengths:
        raise ConfigError(
            f"Tinker at {url} does not train the model {settings.model!r}; "
            f"its models are {', '.join(sorted(lengths))}"
        )
    return service, lengths[settings.model]


def put_advantages(
    config: GemConfig, episodes: Sequence[Episode]
) -> tuple[list[Row], list[list[float]]]:
    """Return the batch with gem's advantages in each Datum, and the advantages per turn."""
    per_turn = config.compute_advantages(episodes)
    return to_batch(episodes, per_turn), per_turn


def check_batch(rows: Sequence[Row]) -> None:
    """Raise `BatchMismatchError` unless each Datum holds the played ids and trains no others."""
    for i, (sequence, datum) in enumerate(rows):
        inputs, mask, where = datum.loss_fn_inputs, sequence.mask[1:], f"Datum {i} of the batch"
        trained = [int(bool(m or a)) for m, a in zip(mask, inputs["advantages"].data, strict=True)]
        check_sequence(where, datum.model_input.to_ints(), trained, sequence.ids[:-1], mask)
        targets = [int(target) for target in inputs["target_tokens"].data]
        check_sequence(where, targets, trained, sequence.ids[1:], mask)
