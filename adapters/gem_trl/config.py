"""Config: what a TRL user says about an environment, and what TRL settings go with it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gem_core.adapter_kit.declaration import require
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.training.config import TrainingConfig
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode
from gem_trl import ADAPTER

if TYPE_CHECKING:
    from gem_trl.rollout import GemRollout

__all__ = ["GemConfig", "check_trainer", "episode_return"]

_ASSUMES_ONE_NUMBER_PER_ROW = ("GMPOTrainer",)


@dataclass
class GemConfig(TrainingConfig):
    """An environment for TRL: gives `train_dataset`, `rollout_func` and `reward_funcs` to a GRPOTrainer.

    Each seed becomes one row, which TRL plays `num_generations` times. The estimator is used by trainers with gem's advantages.
    """

    adapter = ADAPTER

    batch_wait: float = 0.05
    """Seconds a generation batch waits for episodes whose environment is still busy."""
    lockstep: bool | None = None
    """Whether all ranks generate together, with equal calls and sizes; None: wherever the engine is collective."""

    @cached_property
    def train_dataset(self) -> Any:
        """One row per seed, which rides inside the prompt, since TRL passes nothing else on to a rollout function."""
        return self._dataset(self.train_seeds)

    @cached_property
    def eval_dataset(self) -> Any:
        """As `train_dataset`, for `eval_seeds`; None where there are none."""
        return self._dataset(self.held_out_seeds) if self.held_out_seeds else None

    @cached_property
    def rollout_func(self) -> GemRollout:
        """What GRPOTrainer calls for completions."""
        from gem_trl.rollout import GemRollout

        return GemRollout(self)

    @property
    def reward_funcs(self) -> list[Any]:
        """The return of each episode, None where it is failed: TRL leaves those out of its groups."""
        return [episode_return]

    def arguments(self) -> dict[str, Any]:
        """The three of them, and the evaluation set where there is one, as keyword arguments of a trainer."""
        given = {"train_dataset": self.train_dataset, "rollout_func": self.rollout_func, "reward_funcs": self.reward_funcs}
        if self.eval_dataset is not None:
            given["eval_dataset"] = self.eval_dataset
        return given

    def seed_of(self, prompt: Any) -> int:
        """The seed a prompt row carries."""
        carried = prompt[-1].get("gem") if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) else None
        if not carried or "seed" not in carried:
            raise ConfigError(
                "a prompt carries no gem task; train on spec.train_dataset, or give each prompt's last message a key "
                f"'gem': {{'seed': 7}}. Given: {str(prompt)[:120]}"
            )
        return int(carried["seed"])

    def _dataset(self, seeds: Sequence[int]) -> Any:
        try:
            from datasets import Dataset
        except ImportError as error:
            raise MissingDependencyError("a TRL data set", "trl", str(error)) from error
        rows = [{"prompt": [{"role": "user", "content": f"{self.env_id} #{seed}", "gem": {"seed": seed}}]} for seed in seeds]
        return Dataset.from_list(rows)


def episode_return(
    prompts: Any, completions: Any, gem_episode: Sequence[Episode], log_metric: Any = None, **_: Any
) -> list[float | None]:
    """TRL's reward function: the undiscounted return of each episode, and how all ranks' episodes went in TRL's metrics."""
    if log_metric is not None:
        from accelerate.utils import gather_object

        # summed up here, because TRL 1.10 gathers each name a rank happens to log, and hangs where ranks log different ones
        for name, value in BatchMetrics.total(gather_object([BatchMetrics.of(gem_episode)])).means().items():
            log_metric(f"gem/{name}", value)
    return [episode.total_reward for episode in gem_episode]


def check_trainer(trainer: Any, given: GemConfig, per_turn: bool) -> None:
    """Refuses settings that would break what gem promises, with the remedy. `per_turn`: whether gem's advantages are used."""
    require(ADAPTER)
    args = trainer.args
    weighed = zip(trainer.reward_funcs, trainer.reward_weights.tolist())
    others = [getattr(f, "__name__", type(f).__name__) for f, weight in weighed if f is not episode_return and weight]
    refusals = [
        (
            args.mask_truncated_completions,
            "mask_truncated_completions=True drops a whole episode because its last turn was cut; set it to False, and "
            "GemConfig(on_cut='mask') to leave only the cut turn out",
        ),
        (
            bool(getattr(trainer, "tools", None)) or getattr(trainer, "environments", None) is not None,
            "GRPOTrainer(tools=...) and environment_factory make TRL ignore the mask of a rollout function; leave them out, "
            "and name tools in GemConfig(tools=...)",
        ),
        (
            per_turn and bool(getattr(args, "use_liger_kernel", False)),
            "use_liger_kernel=True takes one advantage per row; set it to False for per-turn advantages",
        ),
        (
            per_turn and any(base.__name__ in _ASSUMES_ONE_NUMBER_PER_ROW for base in type(trainer).__mro__),
            f"{type(trainer).__name__} assumes one advantage per row; use GRPOTrainer for per-turn advantages",
        ),
        (
            per_turn and args.scale_rewards != "group",
            f"scale_rewards={args.scale_rewards!r} is for TRL's own advantages, which gem's replace; leave it out, and "
            "GemConfig(advantage='grpo', estimator_kwargs={'scale': False}) divides by no deviation",
        ),
        (
            per_turn and bool(others),
            f"the rewards of {', '.join(others)} would not be trained on: per-turn advantages are made of the environment's "
            "rewards. Put them into a wrapper around the environment, or set their reward_weights to 0 to have them logged only",
        ),
        (
            not _loss_reads_mask(type(trainer)),
            f"the loss of {type(trainer).__name__} does not read `tool_mask`, so that it would train on the environment's words; "
            "use TRL's own GRPOTrainer, or a version of the patch that reads it",
        ),
        (
            given.max_turn_tokens is not None and given.max_turn_tokens > args.max_completion_length,
            f"max_turn_tokens={given.max_turn_tokens} is over TRL's max_completion_length={args.max_completion_length}, which "
            "caps the whole row behind its prompt; raise the latter",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)


def _loss_reads_mask(trainer_class: type) -> bool:
    """Whether the loss, or one that it builds on, reads the mask. Code without a source is given the benefit of the doubt:
    what reaches it is checked with every batch."""
    for base in trainer_class.__mro__:
        if "_compute_loss" in vars(base):
            try:
                source = inspect.getsource(vars(base)["_compute_loss"])
            except (OSError, TypeError):
                return True
            if "tool_mask" in source:
                return True
            if "super()" not in source:
                return False
    return False
