"""Config: what an RL2 user says about an environment, and what RL2 settings go with it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gem_core.errors import ConfigError
from gem_core.training.advantage import estimators
from gem_core.training.config import TrainingConfig
from gem_core.training.horizon import HorizonSchedule
from gem_rl2 import ADAPTER
from gem_rl2.interface import which_rl2

if TYPE_CHECKING:
    from gem_rl2.rollout import Plays

__all__ = ["GemConfig", "check_config", "compose", "config_folder", "longest_row", "prepare_config", "train_sampling"]

_HELD_OUT = 1_000_000


@dataclass
class GemConfig(TrainingConfig):
    """An environment for RL2's PPOTrainer: `GemPPOTrainer(config, spec)`.

    Each seed becomes one row of RL2's data, which it plays `responses_per_prompt` times.
    """

    adapter = ADAPTER

    concurrency: int = 256
    """Blocking steps at a time, each on a thread of its own; environments that are awaited are not counted."""

    def write_starts(self, path: str | Path, seeds: Sequence[int] | None = None) -> str:
        """Writes RL2's data file, a JSON line per start (`train_seeds` if not given), and returns its path."""
        chosen = self.train_seeds if seeds is None else seeds
        Path(path).write_text("".join(json.dumps({"extra_info": {"seed": s}}) + "\n" for s in chosen), encoding="utf-8")
        return str(path)

    def seed_of(self, row: Mapping[str, Any]) -> int:
        """The seed a row of RL2's data carries."""
        carried = row.get("extra_info")
        if not isinstance(carried, Mapping) or "seed" not in carried:
            raise ConfigError(
                "a row of RL2's data carries no gem task; train on what spec.write_starts(path) writes, or give each row "
                f"'extra_info': {{'seed': 7}}. Given: {str(dict(row))[:120]}"
            )
        return int(carried["seed"])

    @cached_property
    def _plays(self) -> Plays:
        from gem_rl2.rollout import Plays

        if isinstance(self.horizon, HorizonSchedule) and len(self.horizon.rounds) > 1:
            raise ConfigError("an environment file is not told the step, so that a horizon cannot grow; use GemPPOTrainer")
        return Plays(self, credited=False)

    async def generate(self, config: Any, tokenizer: Any, router_url: str, sample: Any) -> None:
        """For an environment file of RL2's main branch, trained with RL2's own advantages: `generate = spec.generate`."""
        await self._plays.generate(config, tokenizer, router_url, sample)

    async def reset(self, extra_info: Any) -> NoReturn:
        """What the release asks an environment file for, and gem refuses."""
        raise ConfigError(
            "rl-square 0.0.2 shows an environment file the text of an action only, so that a turn cut short cannot be told from "
            "one that ended, and no turn can be masked; train with GemPPOTrainer(config, spec), or python -m gem_rl2.ppo"
        )

    async def step(self, state: str, action: str, extra_info: Any) -> NoReturn:
        """As `reset`."""
        await self.reset(extra_info)


def compose(overrides: Sequence[str] = ()) -> Any:
    """RL2's own PPO configuration, changed as on its command line: `compose(["actor.model_name=...", ...])`."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    kind = which_rl2()
    with hydra.initialize_config_dir(str(config_folder()), version_base=None):
        if kind == "main":  # which asks hydra for the backend that was chosen
            HydraConfig.instance().set_config(hydra.compose("ppo", overrides=list(overrides), return_hydra_config=True))
        return hydra.compose("ppo", overrides=list(overrides))


def config_folder() -> Path:
    """Where RL2 keeps its configuration."""
    package = importlib.util.find_spec("RL2")
    assert package is not None and package.submodule_search_locations
    return Path(next(iter(package.submodule_search_locations))).resolve() / "trainer" / "config"


def prepare_config(config: Any, spec: GemConfig, folder: str | Path) -> None:
    """Checks RL2's configuration and fills in what the spec says: its data, in files under `folder`, and its advantages."""
    check_config(config, spec)
    train, test = _data(config)
    train.path = spec.write_starts(Path(folder) / "train.jsonl")
    test.path = spec.write_starts(Path(folder) / "test.jsonl", spec.held_out_seeds or [max([_HELD_OUT, *spec.train_seeds]) + 1])
    config.adv.estimator, config.adv.gamma = "gem", spec.gamma  # so that what RL2 prints and logs is what is used


def check_config(config: Any, spec: GemConfig) -> None:
    """Refuses settings that would break what gem promises, with the remedy."""
    train, test = _data(config)
    sampling = train_sampling(config)
    repeats, size = train.responses_per_prompt, train.prompts_per_rollout
    grouped = "groups" in estimators.get(spec.advantage).needs
    refusals = [
        (
            config.adv.estimator not in ("reinforce", "gem", spec.advantage),
            f"adv.estimator={config.adv.estimator} is not what is used; leave it out, and name the estimator in "
            "GemConfig(advantage=...)",
        ),
        (
            config.adv.gamma not in (1.0, spec.gamma),
            f"adv.gamma={config.adv.gamma}, but GemConfig(gamma={spec.gamma}); leave adv.gamma out: the discount is the spec's",
        ),
        (
            bool(config.adv.global_norm or config.adv.norm_var),
            "adv.global_norm and adv.norm_var belong to RL2's own estimator; leave them out ('rebn' normalises over the batch's "
            "turns, 'grpo' over a group)",
        ),
        (
            config.actor.kl.coef > 0 and config.actor.kl.type != "loss",
            f"actor.kl.type={config.actor.kl.type} changes rewards or advantages, which gem computes from the episodes; set "
            "actor.kl.type=loss, or actor.kl.coef=0",
        ),
        (
            config.rollout.env_path is not None,
            f"rollout.env_path={config.rollout.env_path}, but GemPPOTrainer plays the environment of its GemConfig; leave it out",
        ),
        (
            config.rollout.get("max_turns", 1) != 1,
            f"rollout.max_turns={config.rollout.get('max_turns')} is read by RL2's own loop only; set GemConfig(horizon=...)",
        ),
        (
            train.path is not None or test.path is not None,
            "the files of train and test data are written by GemPPOTrainer; leave their paths out, and set GemConfig(seeds=..., "
            "eval_seeds=...)",
        ),
        (
            not size or len(spec.train_seeds) < size,
            f"prompts_per_rollout={size} of {len(spec.train_seeds)} starts leaves RL2 without a batch; set it, and "
            "GemConfig(seeds=...) to as many at least",
        ),
        (
            grouped and repeats < 2,
            f"the estimator {spec.advantage!r} compares episodes from one start, and responses_per_prompt={repeats}; set it to 2 "
            "or more, or use 'rebn'",
        ),
        (
            not (spec.max_turn_tokens or sampling.max_new_tokens),
            "nothing caps a turn; set GemConfig(max_turn_tokens=...), or max_new_tokens of RL2's sampling_params",
        ),
        (
            config.trainer.test_freq is not None and not spec.held_out_seeds,
            f"trainer.test_freq={config.trainer.test_freq}, but there is nothing to evaluate on; set GemConfig(eval_seeds=...)",
        ),
        (
            bool(train.get("partial_rollout", False)) and spec.episode_deadline is not None,
            "partial_rollout=true pauses episodes while RL2 updates, which an episode_deadline counts; leave one of them out",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)


def train_sampling(config: Any) -> Any:
    """RL2's sampling parameters for training."""
    return config.rollout.train.sampling_params if "train" in config.rollout else config.rollout.train_sampling_params


def longest_row(config: Any) -> int | None:
    """The tokens a row may have: RL2 ends a run whose longest row does not fit onto the devices that share it."""
    actor = config.actor
    caps = [c for c in (actor.get("max_length_per_device"), actor.get("max_inference_length_per_device")) if c]
    return min(caps) * actor.get("sp_size", actor.get("cp_size", 1)) * actor.get("tp_size", 1) if caps else None


def _data(config: Any) -> tuple[Any, Any]:
    """RL2's sections on training and test data."""
    return (config.rollout.train, config.rollout.test) if "train" in config.rollout else (config.train_data, config.test_data)
