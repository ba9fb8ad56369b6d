"""Trainer: subclasses of SkyRL's sync and fully async trainers, with per-turn advantages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import ray
from skyrl.backends.skyrl_train.utils.ppo_utils import register_advantage_estimator, sync_registries
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.utils import initialize_ray, validate_cfg

from gem_core.adapter_kit.played import PlayedBatch
from gem_core.adapter_kit.response_tensors import gap_of, read_responses, write_responses
from gem_core.adapter_kit.trainer_rollout import try_environment
from gem_core.errors import ConfigError
from gem_core.plugins.events import send_event
from gem_core.training.metrics import BatchMetrics
from gem_skyrl.config import ESTIMATOR, GemConfig, check_settings, skyrl_config
from gem_skyrl.convert import PLAYED
from gem_skyrl.rollout import GemGenerator

__all__ = ["GemDataset", "GemExp", "GemTrainer", "check_batch", "put_advantages", "train"]


@register_advantage_estimator(ESTIMATOR)  # type: ignore[untyped-decorator]
def _estimate(**_: Any) -> Any:
    raise ConfigError(f"advantage_estimator={ESTIMATOR} needs gem's trainers; use gem_skyrl.GemExp")


def train(config: GemConfig, settings: Sequence[str], experiment: Any = None) -> None:
    """Train with `settings`, overrides of SkyRL's config. `experiment`: a subclass of `GemExp`."""
    config = config.with_absolute_paths()  # Ray's workers may run in other folders
    composed = skyrl_config(config, settings)
    check_settings(composed, config)
    validate_cfg(composed)
    try_environment(config)
    if not ray.is_initialized():
        initialize_ray(composed)
    sync_registries()
    worker = ray.remote(num_cpus=1, max_retries=0)  # a retry would repeat updates
    task = worker(lambda: (experiment or GemExp)(composed, config).run()).remote()
    try:
        ray.get(task)  # a worker of the cluster trains, as with SkyRL's own program
    except KeyboardInterrupt:
        ray.cancel(task)  # it then records the episodes that were not trained
        ray.wait([task], timeout=60)
        raise


class GemDataset(PromptDataset):
    """Dataset with one prompt per seed."""

    def __init__(self, env_id: str, seeds: Sequence[int]) -> None:
        self.env_id, self.dataframe = env_id, seeds  # SkyRL counts the rows of `dataframe`

    def __getitem__(self, item: int) -> tuple[Any, ...]:
        seed, env_id = self.dataframe[item], self.env_id
        messages = [{"role": "user", "content": f"{env_id} #{seed}"}]
        return messages, None, {"seed": seed, "data_source": env_id}, str(item)


class GemExp(BasePPOExp):
    """SkyRL's experiment on the environment of a `GemConfig`."""

    def __init__(self, cfg: Any, config: GemConfig) -> None:
        self.gem_config = config
        super().__init__(cfg)

    def get_train_dataset(self) -> GemDataset:
        return GemDataset(self.gem_config.env_id, self.gem_config.train_seeds)

    def get_eval_dataset(self) -> GemDataset | None:
        seeds = self.gem_config.held_out_seeds
        return GemDataset(self.gem_config.env_id, seeds) if seeds else None

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> GemGenerator:
        return GemGenerator(self.gem_config, cfg, inference_engine_client, tokenizer)

    def get_trainer(self, cfg: Any, *args: Any, **kwargs: Any) -> GemTrainer:
        trainer = _GemAsyncTrainer if cfg.trainer.fully_async.enabled else GemTrainer
        return trainer(cfg, *args, **kwargs)


class GemTrainer(RayPPOTrainer):
    """SkyRL's trainer with gem's advantages."""

    generator: GemGenerator

    async def train(self) -> None:
        with closing(self.generator):
            await super().train()

    async def eval(self, **kwargs: Any) -> dict[str, float]:
        self.generator.records.evaluation = []
        metrics = await super().eval(**kwargs)
        means = BatchMetrics.of(self.generator.records.evaluation).means()
        return {**metrics, **{f"eval/gem/{name}": value for name, value in means.items()}}

    def load_checkpoints(self) -> Any:
        """Resume, unless the run has finished: SkyRL would train one more update."""
        loaded, total = super().load_checkpoints(), self.cfg.trainer.max_training_steps
        if total and loaded[0] >= total:
            raise ConfigError(
                f"{loaded[1]} has {loaded[0]} updates, and trainer.max_training_steps={total}, "
                "the total, is not more; raise it, or set another trainer.ckpt_path"
            )
        return loaded

    def convert_to_training_input(self, generator_output: Any, uids: list[str]) -> Any:
        self.played = PlayedBatch.of(generator_output.pop(PLAYED))
        return super().convert_to_training_input(generator_output, uids)

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """Compute the advantages from the episodes: SkyRL calls it once, for the whole batch."""
        config, played, values = self.generator.config, self.played, None
        check_batch(data, played)
        send_event("batch_end", episodes=played.episodes)
        if config.needs_values:
            values = played.values(read_responses(data["values"], data["response_mask"]))
        per_turn = config.compute_advantages(played.episodes, values=values)
        put_advantages(data, played, advantages=per_turn, returns=played.returns(config, values))
        self.generator.records.trained(played.episodes, per_turn, self.global_step - 1)
        self.batch_metrics = BatchMetrics.of(played.episodes, per_turn)
        raw = data["advantages"][data["loss_mask"].bool()]
        if len(raw):  # SkyRL's own metrics, without failed episodes and untrained tokens
            self.all_metrics["loss/avg_final_rewards"] = self.batch_metrics.means()["return"]
            self.all_metrics["loss/avg_raw_advantages"] = raw.mean().item()
            self.all_metrics["loss/avg_raw_advantages_abs"] = raw.abs().mean().item()
        return data

    def _execute_training_step(self, model: str, data: Any) -> Any:
        """Train on the trained sequences; the critic, where its values are read."""
        data = data.select(list(data))
        if model == "critic":  # before the first token of each turn
            data["loss_mask"] = write_responses(self.played.critic_masks(), data["response_mask"])
        return super()._execute_training_step(model, trained_part(data))

    def train_critic_and_policy(self, data: Any) -> Any:
        """Train unless the batch has no trained tokens; write the update to the metrics file."""
        status = super().train_critic_and_policy(data) if self.batch_metrics.tokens else {}
        gap = gap_of(data["rollout_logprobs"], data.get("action_log_probs"), data["loss_mask"])
        shown = {**self.batch_metrics.means(), **gap}  # no gap if the loss needs no old logprobs
        self.all_metrics |= {f"gem/{name}": value for name, value in shown.items()}
        numbers = {"loss": status.get("policy_loss"), "grad_norm": status.get("grad_norm"), **gap}
        if "critic/critic_loss" in self.all_metrics:
            numbers["critic_loss"] = self.all_metrics["critic/critic_loss"]
        self.generator.update_log.write(self.global_step - 1, self.batch_metrics, **numbers)
        return status


class _GemAsyncTrainer(GemTrainer, FullyAsyncRayPPOTrainer):
    """SkyRL's fully async trainer with gem's advantages."""

    def convert_generation_group_mini_batch_to_training_input(self, groups: Any, *args: Any) -> Any:
        """Raise the error of a generation, if there is one: generating again would not help."""
        for output in (group.generator_output for group in groups):
            if isinstance(output, Exception):
                raise output
        return super().convert_generation_group_mini_batch_to_training_input(groups, *args)


def put_advantages(data: Any, played: PlayedBatch, **numbers: Sequence[Sequence[float]]) -> None:
    """Write numbers per turn, such as `advantages`, as one per token; 0 on untrained tokens."""
    for name, per_turn in numbers.items():
        data[name] = write_responses(played.per_token(per_turn), data["response_mask"])


def trained_part(data: Any) -> Any:
    """Return the batch without sequences, prompts and mini-batches that have no trained tokens.

    SkyRL's sequence means would count them, and it would make an optimizer step without a gradient.
    """
    trained = data["loss_mask"].bool().any(dim=1)
    part = type(data)({k: None if v is None else v[trained] for k, v in data.items()})
    before = [0, *trained.cumsum(0).tolist()]
    part.metadata = dict(data.metadata)
    for name in [name for name in data.metadata if name.endswith("_boundaries")]:
        moved = [(before[start], before[end]) for start, end in data.metadata[name]]
        part.metadata[name] = [(start, end) for start, end in moved if start < end]
    return part


def check_batch(data: Any, played: PlayedBatch) -> None:
    """Raise `BatchMismatchError` unless the batch holds the played ids and loss masks."""
    ids = read_responses(data["sequences"], data["attention_mask"])
    for i, mask in enumerate(read_responses(data["loss_mask"], data["response_mask"])):
        played.check_sequence(i, ids[i], mask)
