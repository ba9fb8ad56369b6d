"""Config: the environment to train on in verl, as hydra overrides, and the verl settings that do not fit it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import Rejection, few_samples, long_turns, reject
from gem_core.env.registry import spec as env_spec
from gem_core.errors import ConfigError
from gem_core.policies.base import warn_if_cut
from gem_core.training.config import TrainingConfig
from gem_core.types import Sampling, Task
from gem_verl import ADAPTER

__all__ = [
    "AGENT",
    "PREFIX",
    "GemConfig",
    "algorithm_rejections",
    "check_settings",
    "has_gem_trainer",
    "hydra_config",
    "one_sequence_reason",
    "plain",
    "read_config",
]

AGENT = "gem"
"""The name of the agent loop."""
PREFIX = "gem_"
"""The prefix of gem's estimators and trainers in verl's registries."""
_ELSEWHERE = {
    "advantage": "algorithm.adv_estimator",
    "gamma": "algorithm.gamma",
    "estimator_kwargs": "algorithm.gem",
}
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
_EQUIVALENT = {"grpo": "gem_grpo", "rloo": "gem_rloo", "reinforce_plus_plus": "gem_reinforce++"}
"""gem's estimator for one of verl's own; for any other it is gem_rebn."""


@dataclass
class GemConfig(TrainingConfig):
    """An environment for verl: `train(config, settings)`, or `overrides()` for `python -m verl.trainer.main_ppo`.

    Each seed becomes one prompt, which verl plays `rollout.n` times. In a hydra config the same fields are under `data.gem`.
    """

    adapter = ADAPTER

    eval_envs: Sequence[str] | str = ()
    """The environments to validate on, with the same wrappers and limits; empty: the one that is trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for env_id in self.validated:
            env_spec(env_id)

    @property
    def validated(self) -> list[str]:
        """The environments to validate on."""
        env_ids = [self.eval_envs] if isinstance(self.eval_envs, str) else list(self.eval_envs)
        return [env_id for env_id in env_ids if env_id] or [self.env_id]

    def overrides(self) -> list[str]:
        """The hydra overrides that make `verl.trainer.main_ppo` train on this environment; verl's own settings follow them."""
        overrides = [
            f"algorithm.adv_estimator={_hydra(PREFIX + self.advantage)}",
            f"algorithm.gamma={self.gamma}",
            "trainer.v1.trainer_mode=gem_sync",
            f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT}",
            "data.custom_cls.path=pkg://gem_verl.dataset",
            "data.custom_cls.name=GemDataset",
            "data.train_files=train",
            "data.val_files=val",
        ]
        if self.estimator_kwargs:
            overrides.append(f"+algorithm.gem={_hydra(dict(self.estimator_kwargs))}")
        if not self.held_out_seeds:
            overrides += ["trainer.val_before_train=False", "trainer.test_freq=-1"]
        fields = {name: value for name, value in self.to_dict().items() if name not in _ELSEWHERE}
        return overrides + [f"+data.gem.{name}={_hydra(value)}" for name, value in fields.items()]

    def task_of(self, row: Mapping[str, Any]) -> Task:
        """The task of a row of the data set."""
        carried = (row.get("extra_info") or {}).get("gem") or {}
        if "seed" not in carried:
            raise ConfigError(
                "a row of the data set carries no gem task; train on gem_verl.GemDataset, or give each row an extra_info with "
                f"'gem': {{'seed': 7}}. Given: {str(dict(row))[:120]}"
            )
        task = self.task(int(carried["seed"]))
        env_id = carried.get("env_id") or self.env_id
        return (
            task
            if env_id == self.env_id
            else Task(env_id, task.seed, task.options, task.wrappers, task.env_kwargs)
        )


def hydra_config(config: GemConfig, settings: Sequence[str] = ()) -> Any:
    """verl's configuration with the config's overrides and, after them, the overrides in `settings`."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*config.overrides(), *settings])


def read_config(settings: Any, loop_entry: Mapping[str, Any] | None = None) -> GemConfig:
    """The config in verl's settings: `data.gem`, overridden by an agent loop's own YAML entry."""
    fields = {**plain(settings.data.get("gem") or {}), **plain(loop_entry or {})}
    name, algorithm = str(settings.algorithm.adv_estimator), settings.algorithm
    values = {
        "gamma": float(algorithm.gamma),
        "estimator_kwargs": plain(algorithm.get("gem") or {}),
    }
    if name.startswith(PREFIX):
        values["advantage"] = name.removeprefix(PREFIX)
    for key, setting in _ELSEWHERE.items():
        if key in fields and fields[key] != values.get(key):
            raise ConfigError(
                f"data.gem.{key} is {fields[key]!r} and {setting} is {values.get(key, name)!r}; remove data.gem.{key}, and set "
                f"{setting}, which agent loop and estimator both read"
            )
    return GemConfig.from_dict({**fields, **values}, where="data.gem")


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise `ConfigError` for all verl settings that would break gem's promises, with the remedies."""
    require(ADAPTER)
    name = str(settings.algorithm.adv_estimator)
    per_turn = name.startswith(PREFIX)
    rollout, actor = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.actor
    filter_groups = settings.algorithm.get("filter_groups") or {}
    wrapper, one_sequence = config.rewriting_wrapper(), one_sequence_reason(settings, config)
    reject(
        [
            few_samples(config, int(rollout.n), "actor_rollout_ref.rollout.n"),
            long_turns(config, int(rollout.response_length), "data.max_response_length"),
            *(algorithm_rejections(settings.algorithm, config.advantage) if per_turn else ()),
            (
                per_turn
                and config.estimator_kwargs.get("per_env")
                and not has_gem_trainer(settings),
                "per_env needs the environment of each sequence, which only gem's trainers read; set "
                "trainer.v1.trainer_mode=gem_sync",
            ),
            (
                config.metrics is not None and not has_gem_trainer(settings),
                "metrics are written by gem's trainers; set trainer.v1.trainer_mode=gem_sync, or remove GemConfig.metrics",
            ),
            (
                per_turn and bool(settings.critic.enable),
                "critic.enable=True trains a critic, which only verl's own 'gae' uses; leave it null",
            ),
            (
                filter_groups.get("enable") and filter_groups.get("metric") != "reward",
                f"algorithm.filter_groups.metric={filter_groups.get('metric')} is unknown for a failed episode, and verl would "
                "end the training there; set it to reward",
            ),
            (
                per_turn and actor.policy_loss.get("loss_mode") == "geo_mean",
                "actor.policy_loss.loss_mode=geo_mean takes one advantage per sequence; use another, such as vanilla",
            ),
            (
                bool(settings.reward.reward_model.enable),
                "reward.reward_model.enable=True overwrites the environment's rewards with its own scores; set it to False",
            ),
            (
                wrapper is not None and one_sequence,
                f"the wrapper {wrapper!r} rewrites the context, which makes several sequences of an episode, and {one_sequence}",
            ),
            _incompatible_trl(),
        ]
    )
    warn_if_cut(Sampling(top_p=rollout.top_p, top_k=max(int(rollout.top_k), 0)))
    if not per_turn:
        warnings.warn(
            f"verl's own estimator {name!r} counts a failed episode as one with reward 0: with two episodes that earned 1, grpo "
            f"gives those 0.577 each instead of 0. Set algorithm.adv_estimator={_EQUIVALENT.get(name, 'gem_rebn')}, which "
            "excludes it, unless no episode can fail.",
            stacklevel=1,  # this line, whoever checks: Python then shows it once per process
        )


def algorithm_rejections(algorithm: Any, advantage: str) -> list[Rejection]:
    """The settings under `algorithm` that do not fit gem's estimators."""
    correction = algorithm.get("rollout_correction") or {}
    unscaled = not algorithm.get("norm_adv_by_std_in_grpo", True) and (
        algorithm.get("gem") or {}
    ).get("scale", True)
    return [
        (
            algorithm.get("use_kl_in_reward"),
            "algorithm.use_kl_in_reward=True adds a penalty to the reward of every token, which per-turn advantages do not "
            "contain; set it to False, and actor_rollout_ref.actor.use_kl_loss=True for KL in the loss",
        ),
        (
            correction.get("rollout_rs"),
            f"algorithm.rollout_correction.rollout_rs={correction.get('rollout_rs')!r} changes the mask, which splits turns; "
            "leave it null (rollout_is, importance weights, is supported)",
        ),
        (
            advantage == "grpo" and unscaled,
            "algorithm.norm_adv_by_std_in_grpo=False is for verl's own grpo; set +algorithm.gem.scale=False, which is "
            "GemConfig(advantage='grpo', estimator_kwargs={'scale': False})",
        ),
        (
            algorithm.get("use_pf_ppo"),
            "algorithm.use_pf_ppo=True reweights the batch of verl's own gae only, and would have no effect; set it to False",
        ),
    ]


def has_gem_trainer(settings: Any) -> bool:
    """Whether one of gem's trainers trains, which has the episodes themselves; it marks the settings it was given."""
    v1 = settings.trainer.v1
    return bool(
        settings.trainer.use_v1
        and (v1.get("gem_trainer", False) or str(v1.trainer_mode).startswith(PREFIX))
    )


def one_sequence_reason(settings: Any, config: GemConfig) -> str:
    """Why an episode must be one sequence under these settings, and the remedy; empty if it may be several."""
    name = str(settings.algorithm.adv_estimator)
    if not name.startswith(PREFIX):
        return f"verl's own estimator {name!r} reads rewards of whole sequences; set algorithm.adv_estimator=gem_rebn"
    if config.needs_groups and not has_gem_trainer(settings):
        return (
            f"the estimator {name!r} compares whole episodes, and only gem's trainers know which sequences belong to one; set "
            "trainer.v1.trainer_mode=gem_sync"
        )
    return ""


def plain(mapping: Any) -> dict[str, Any]:
    """A mapping, OmegaConf's or an ordinary one, as a dictionary."""
    from omegaconf import OmegaConf

    container = (
        OmegaConf.to_container(mapping, resolve=True) if OmegaConf.is_config(mapping) else mapping
    )
    if not isinstance(container, Mapping):
        raise ConfigError(
            f"data.gem is a mapping of fields, as in {{env_id: 'game:Wordle-v0'}}; given: {container!r}"
        )
    return {str(key): value for key, value in container.items()}


def _incompatible_trl() -> Rejection:
    """verl patches a class of an installed TRL when it loads a model; newer versions of TRL do not have it."""
    installed, has_class = find_spec("trl"), False
    for module in ("trl.experimental.ppo", "trl"):  # where verl looks for it
        with suppress(ImportError):
            has_class = has_class or hasattr(import_module(module), _VALUE_HEAD)
    where = ", ".join((installed and installed.submodule_search_locations) or ())
    return (
        installed is not None and not has_class,
        f"verl patches TRL's {_VALUE_HEAD} when it loads a model, and the TRL in {where} has none; install verl into an "
        "environment of its own, or remove TRL from this one: pip uninstall trl",
    )


def _hydra(value: Any) -> str:
    """A value in the grammar of hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, str):
        # in hydra's grammar, a backslash is literal unless a quote follows
        return (
            "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
        )
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    return "[" + ",".join(_hydra(item) for item in value) + "]"
