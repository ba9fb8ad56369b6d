"""Config: the environment to train on in RL2, and the RL2 settings that do not fit it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import Rejection, few_samples, reject
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_rl2 import ADAPTER

__all__ = [
    "GemConfig",
    "check_settings",
    "compose",
    "longest_sequence",
    "rejections",
    "require_release",
    "settings_folder",
]


@dataclass
class GemConfig(TrainingConfig):
    """An environment for RL2: `train(config, settings)`, or `GemPPOTrainer(compose(settings), config).train()`.

    Each seed becomes one row of RL2's data, which it plays `responses_per_prompt` times.
    """

    adapter = ADAPTER

    def task_of(self, row: Mapping[str, Any], index: int = 0) -> Task:
        """The task of a row of RL2's data, which carries its seed."""
        carried = row.get("extra_info")
        if not isinstance(carried, Mapping) or "seed" not in carried:
            raise ConfigError(
                "a row of RL2's data carries no gem task; train with gem_rl2.train, which writes the data, or give each row "
                f"'extra_info': {{'seed': 7}}. Given: {str(dict(row))[:120]}"
            )
        return self.task(int(carried["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise `ConfigError` for all settings of RL2 that would break gem's promises, with the remedies."""
    require_release()
    reject(rejections(settings, config))


def rejections(settings: Any, config: GemConfig) -> list[Rejection]:
    """The settings that do not fit `config`, each with its remedy."""
    adv, kl, data = settings.adv, settings.actor.kl, settings.train_data
    return [
        (
            adv.estimator not in ("reinforce", "gem", config.advantage),
            f"adv.estimator={adv.estimator} is not used; remove it, and name the estimator in GemConfig(advantage=...)",
        ),
        (
            adv.gamma not in (1.0, config.gamma),
            f"adv.gamma={adv.gamma} differs from GemConfig(gamma={config.gamma}), which is used; remove adv.gamma",
        ),
        (
            adv.global_norm or adv.norm_var,
            "adv.global_norm and adv.norm_var are for RL2's own estimator; remove them ('rebn' normalises over the turns of a "
            "batch, 'grpo' over a group)",
        ),
        (
            kl.coef > 0 and kl.type != "loss",
            f"actor.kl.type={kl.type} changes rewards or advantages, which gem computes from the episodes; set "
            "actor.kl.type=loss, or actor.kl.coef=0",
        ),
        (
            settings.rollout.env_path is not None,
            f"rollout.env_path={settings.rollout.env_path} is not used: the environment is the one of GemConfig; remove it",
        ),
        (
            settings.rollout.max_turns != 1,
            f"rollout.max_turns={settings.rollout.max_turns} is for RL2's own loop; remove it, and set GemConfig(horizon=...)",
        ),
        (
            data.path is not None or settings.test_data.path is not None,
            "gem writes the files of train and test data; remove their paths, and set GemConfig(seeds=..., eval_seeds=...)",
        ),
        (
            not data.prompts_per_rollout or len(config.train_seeds) < data.prompts_per_rollout,
            f"prompts_per_rollout={data.prompts_per_rollout} leaves RL2 without a batch, because there are "
            f"{len(config.train_seeds)} seeds; set it to a number, and GemConfig(seeds=...) to at least as many",
        ),
        few_samples(config, data.responses_per_prompt, "responses_per_prompt"),
        (
            not (config.max_turn_tokens or settings.rollout.train_sampling_params.max_new_tokens),
            "nothing caps a turn; set GemConfig(max_turn_tokens=...), or max_new_tokens of RL2's sampling parameters",
        ),
        (
            settings.trainer.test_freq is not None and not config.held_out_seeds,
            f"trainer.test_freq={settings.trainer.test_freq} asks for evaluation, and there are no seeds for it; set "
            "GemConfig(eval_seeds=...)",
        ),
    ]


def compose(overrides: Sequence[str] = ()) -> Any:
    """RL2's own PPO settings, changed as on its command line: `compose(["actor.model_name=...", ...])`."""
    import hydra

    require_release()
    with hydra.initialize_config_dir(str(settings_folder()), version_base=None):
        return hydra.compose("ppo", overrides=list(overrides))


def require_release() -> None:
    """Raise `ConfigError` unless the installed RL2 is the release. A checkout may have the same version number."""
    require(ADAPTER)
    folder = settings_folder().parents[1]
    if not (folder / "utils" / "sglang.py").is_file():
        raise ConfigError(
            f"the RL2 in {folder} is not the release {ADAPTER.distribution} {ADAPTER.versions}, which has RL2.utils.sglang; take "
            "the checkout off the path, or see 'Main branch' in gem_rl2/README.md"
        )


def settings_folder() -> Path:
    """The folder of RL2's settings files."""
    package = importlib.util.find_spec("RL2")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError("gem_rl2", ADAPTER.extra, "No module named 'RL2'")
    return Path(next(iter(package.submodule_search_locations))).resolve() / "trainer" / "config"


def longest_sequence(settings: Any) -> int | None:
    """The most tokens a sequence may have: RL2 ends a run whose longest one does not fit on the devices that share it."""
    actor = settings.actor
    caps = [
        cap for cap in (actor.max_length_per_device, actor.max_inference_length_per_device) if cap
    ]
    return min(caps) * actor.sp_size * actor.tp_size if caps else None
