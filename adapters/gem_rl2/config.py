"""Config: the environment to train on with RL2, and the check of RL2's own settings."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
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
    """Training configuration for RL2: the environment, its limits and the advantage estimator.

    Each seed becomes one row of RL2's data, which RL2 plays `responses_per_prompt` times.
    """

    adapter = ADAPTER

    def task_of(self, row: Mapping[str, Any], index: int = 0) -> Task:
        """Return the task of a dataset row."""
        fields = row.get("extra_info")
        if not isinstance(fields, Mapping) or "seed" not in fields:
            raise ConfigError(
                "a dataset row has no gem task; train with gem_rl2.train, which writes the data, "
                f"or give each row 'extra_info': {{'seed': 7}}. Got: {str(dict(row))[:120]}"
            )
        return self.task(int(fields["seed"]), index)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every RL2 setting gem does not support.

    `settings`: RL2's hydra config, as `compose` returns it.
    """
    require_release()
    reject(rejections(settings, config))


def rejections(settings: Any, config: GemConfig) -> list[Rejection]:
    """Return the rejections of RL2's settings. The main branch uses them, too."""
    adv, kl, data = settings.adv, settings.actor.kl, settings.train_data
    rollout, seeds = settings.rollout, len(config.train_seeds)
    test_freq, held_out = settings.trainer.test_freq, config.held_out_seeds
    evaluates = test_freq is not None or settings.trainer.get("eval_only", False)
    caps = {
        "train": rollout.train_sampling_params.max_new_tokens,
        "test": rollout.test_sampling_params.max_new_tokens,
    }
    ignored = {
        name: cap
        for name, cap in caps.items()
        if cap is not None and config.max_turn_tokens not in (None, cap)
    }
    return [
        (
            adv.estimator not in ("reinforce", "gem", config.advantage),
            f"adv.estimator={adv.estimator} applies to RL2's own advantages only; remove it, and "
            "set GemConfig(advantage=...)",
        ),
        (
            adv.gamma not in (1.0, config.gamma),
            f"adv.gamma={adv.gamma} differs from GemConfig(gamma={config.gamma}), which gem uses; "
            "remove adv.gamma",
        ),
        (
            adv.global_norm or adv.norm_var or adv.lamda != 1.0,
            "adv.global_norm, adv.norm_var and adv.lamda apply to RL2's own estimators only; "
            "remove them "
            "('rebn' normalises over the turns of a batch, 'grpo' over a group, and "
            "GemConfig(estimator_kwargs={'lam': ...}) sets λ of 'gae')",
        ),
        (
            kl.coef > 0 and kl.type != "loss",
            f"actor.kl.type={kl.type} changes rewards or advantages, which gem computes from the "
            "episodes; set actor.kl.type=loss, or actor.kl.coef=0",
        ),
        (
            settings.actor.freeze_steps > 0 and not config.needs_values,
            f"actor.freeze_steps={settings.actor.freeze_steps} trains only a critic, and "
            f"{config.advantage!r} has none; set it to 0",
        ),
        (
            rollout.env_path is not None,
            f"rollout.env_path={rollout.env_path} is not used, because GemConfig names the "
            "environment; remove it",
        ),
        (
            rollout.max_turns != 1,
            f"rollout.max_turns={rollout.max_turns} applies to RL2's own rollout only; remove it, "
            "and set GemConfig(horizon=...)",
        ),
        (
            data.path is not None or settings.test_data.path is not None,
            "gem writes the train and test data; remove their paths, and set "
            "GemConfig(seeds=..., eval_seeds=...)",
        ),
        (
            not data.prompts_per_rollout or seeds < data.prompts_per_rollout,
            f"prompts_per_rollout={data.prompts_per_rollout} leaves RL2 without a batch, because "
            f"there are {seeds} seeds; set it to a number, and GemConfig(seeds=...) to at least as "
            "many",
        ),
        few_samples(config, data.responses_per_prompt, "responses_per_prompt"),
        *_newer_model(settings.actor.model_name),
        (
            not settings.actor.max_length_per_device,
            "actor.max_length_per_device is not set, and RL2 packs the sequences of a batch by it; "
            "set it to the tokens that a device holds, at least those of the longest sequence",
        ),
        (
            not config.max_turn_tokens and not (caps["train"] and (caps["test"] or not evaluates)),
            "a turn has no token cap; set GemConfig(max_turn_tokens=...), or max_new_tokens in "
            "RL2's sampling parameters, for evaluation also in those of the test data",
        ),
        (
            ignored,
            f"max_new_tokens={'/'.join(map(str, dict.fromkeys(ignored.values())))} in RL2's "
            f"{' and '.join(ignored)} sampling parameters differs from "
            f"GemConfig(max_turn_tokens={config.max_turn_tokens}), which caps every turn; remove "
            "one of them",
        ),
        (
            held_out and not evaluates,
            f"GemConfig has {len(held_out)} seeds to evaluate on, but trainer.test_freq is null, "
            "so RL2 never evaluates; set trainer.test_freq, or remove eval_seeds",
        ),
        (
            test_freq is not None and not held_out,
            f"trainer.test_freq={test_freq} evaluates, but there are no seeds to evaluate on; set "
            "GemConfig(eval_seeds=...)",
        ),
    ]


def _newer_model(model_name: str | None) -> list[Rejection]:
    """Reject a model folder of transformers 5 that the transformers of RL2 does not read.

    It would use a base of RoPE of 10000 without a warning, and does not have the tokenizer's class.
    """
    folder, installed = Path(model_name or ""), version("transformers")
    if int(installed.split(".")[0]) >= 5:
        return []
    fields = _read_json(folder / "config.json")
    theta = (fields.get("rope_parameters") or {}).get("rope_theta", 10000)
    tokenizer = _read_json(folder / "tokenizer_config.json")
    saved = f"transformers 5 saved {model_name}, and the installed transformers {installed}"
    return [
        (
            "rope_theta" not in fields and theta != 10000,
            f"{saved} does not read its rope_parameters; add "
            f'"rope_theta": {theta} to its config.json',
        ),
        (
            tokenizer.get("tokenizer_class") == "TokenizersBackend",
            f"{saved} does not have its tokenizer's class; in its tokenizer_config.json, set "
            '"tokenizer_class" to "PreTrainedTokenizerFast"',
        ),
    ]


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content


def compose(overrides: Sequence[str] = ()) -> Any:
    """Return RL2's PPO settings with overrides: `compose(["actor.model_name=...", ...])`."""
    import hydra

    require_release()
    with hydra.initialize_config_dir(str(settings_folder()), version_base=None):
        return hydra.compose("ppo", overrides=list(overrides))


def require_release() -> None:
    """Raise `ConfigError` unless the installed RL2 is the release.

    RL2's main branch has the same version number.
    """
    require(ADAPTER)
    folder = settings_folder().parents[1]
    if not (folder / "utils" / "sglang.py").is_file():
        raise ConfigError(
            f"the RL2 in {folder} has no RL2.utils.sglang, so it is not the release "
            f"{ADAPTER.distribution} {ADAPTER.versions}; remove the checkout from the path, or see "
            "'Main branch' in gem_rl2/README.md"
        )


def settings_folder() -> Path:
    """Return the folder of RL2's settings files."""
    package = importlib.util.find_spec("RL2")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError("gem_rl2", ADAPTER.extra, "No module named 'RL2'")
    return Path(next(iter(package.submodule_search_locations))).resolve() / "trainer" / "config"


def longest_sequence(settings: Any, *, with_critic: bool = False) -> int | None:
    """Return the maximum sequence length; RL2 fails if a sequence exceeds what its devices hold."""
    workers = [settings.actor]
    workers += [settings.critic] if with_critic else []
    workers += [settings.ref_actor] if settings.actor.kl.coef > 0 else []
    limits = [
        per_device * worker.sp_size * worker.tp_size
        for worker in workers
        for name in ("max_length_per_device", "max_inference_length_per_device")
        if (per_device := getattr(worker, name, None))
    ]
    return min(limits, default=None)
