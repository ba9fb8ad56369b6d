"""Config: the environment to train on with verl, and the check of verl's own settings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
    "rewrites_history",
]

AGENT = "gem"
"""The name of gem's agent loop in verl's registry."""
PREFIX = "gem_"
"""The prefix of gem's estimators and trainers in verl's registries."""
_IN_ALGORITHM = {
    "advantage": "algorithm.adv_estimator",
    "gamma": "algorithm.gamma",
    "estimator_kwargs": "algorithm.gem",
}
"""The fields of `GemConfig` that verl's settings hold outside `data.gem`."""
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
_EQUIVALENT = {"grpo": "gem_grpo", "rloo": "gem_rloo", "reinforce_plus_plus": "gem_reinforce++"}
"""gem's counterpart of each of verl's own estimators; all others map to gem_rebn."""


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for verl: the environment, its limits and the advantage estimator.

    Each seed becomes one row of the dataset, which verl plays `rollout.n` times. In verl's hydra
    config the fields are under `data.gem`.
    """

    adapter = ADAPTER

    eval_envs: Sequence[str] | str = ()
    """The environments to validate on, with the same wrappers and limits. Default: `env_id`."""

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
        """Return the hydra overrides that make `verl.trainer.main_ppo` train on this environment.

        Put overrides of verl's own settings after them.
        """
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
        if self.needs_values:
            overrides.append("critic.enable=True")
            overrides.append("critic.model.path=${actor_rollout_ref.model.path}")
        if self.estimator_kwargs:
            overrides.append(f"+algorithm.gem={_hydra(dict(self.estimator_kwargs))}")
        if not self.held_out_seeds:
            overrides += ["trainer.val_before_train=False", "trainer.test_freq=-1"]
        for name, value in self.to_dict().items():
            if name not in _IN_ALGORITHM:
                overrides.append(f"+data.gem.{name}={_hydra(value)}")
        return overrides

    def task_of(self, row: Mapping[str, Any]) -> Task:
        """Return the task of a dataset row."""
        fields = (row.get("extra_info") or {}).get("gem") or {}
        if "seed" not in fields:
            raise ConfigError(
                "a dataset row has no gem task; train on gem_verl.GemDataset, or give each row "
                f"'extra_info': {{'gem': {{'seed': 7}}}}. Got: {str(dict(row))[:120]}"
            )
        task = self.task(int(fields["seed"]))
        env_id = fields.get("env_id") or self.env_id
        if env_id == self.env_id:
            return task
        return replace(task, env_id=env_id)

    def is_evaluation(self, row: Mapping[str, Any]) -> bool:
        """Return whether a dataset row is one to evaluate on."""
        return bool(((row.get("extra_info") or {}).get("gem") or {}).get("evaluation", False))


def hydra_config(config: GemConfig, settings: Sequence[str] = ()) -> Any:
    """Return verl's settings with the config's overrides, then those in `settings`."""
    import verl  # noqa: F401 - hydra would hide why it cannot be imported
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[*config.overrides(), *settings])


def read_config(settings: Any, loop_entry: Mapping[str, Any] | None = None) -> GemConfig:
    """Read the config from `data.gem` in verl's settings; an agent loop's entry overrides it."""
    fields = {**plain(settings.data.get("gem") or {}), **plain(loop_entry or {})}
    name, algorithm = str(settings.algorithm.adv_estimator), settings.algorithm
    values = {
        "gamma": float(algorithm.gamma),
        "estimator_kwargs": plain(algorithm.get("gem") or {}),
    }
    if name.startswith(PREFIX):
        values["advantage"] = name.removeprefix(PREFIX)
    for key, setting in _IN_ALGORITHM.items():
        if key in fields and fields[key] != values.get(key):
            raise ConfigError(
                f"data.gem.{key} is {fields[key]!r} and {setting} is {values.get(key, name)!r}; "
                f"remove data.gem.{key} and set {setting}: the agent loop and the estimator read it"
            )
    return GemConfig.from_dict({**fields, **values}, where="data.gem")


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every verl setting gem does not support.

    `settings`: verl's hydra config.
    """
    require(ADAPTER)
    name = str(settings.algorithm.adv_estimator)
    per_turn = name.startswith(PREFIX)
    rollout, actor = settings.actor_rollout_ref.rollout, settings.actor_rollout_ref.actor
    filter_groups = settings.algorithm.get("filter_groups") or {}
    filter_metric = filter_groups.get("metric")
    correction = settings.algorithm.get("rollout_correction") or {}
    corrected = correction.get("rollout_is") or correction.get("bypass_mode")
    rewards, turns = _reward_settings(settings), _turn_settings(rollout.multi_turn)
    template_kwargs = plain(settings.data.get("apply_chat_template_kwargs") or {})
    rewrites, one_sequence = rewrites_history(config), one_sequence_reason(settings, config)
    reject(
        [
            few_samples(config, int(rollout.n), "actor_rollout_ref.rollout.n"),
            long_turns(config, int(rollout.response_length), "data.max_response_length"),
            *(algorithm_rejections(settings.algorithm, config.advantage) if per_turn else ()),
            (
                per_turn
                and config.estimator_kwargs.get("per_env")
                and not has_gem_trainer(settings),
                "per_env needs the environment of each sequence, which only gem's trainers read; "
                "set trainer.v1.trainer_mode=gem_sync",
            ),
            *_critic_rejections(settings, config, per_turn),
            (
                config.metrics is not None and not has_gem_trainer(settings),
                f"GemConfig(metrics={config.metrics!r}) needs gem's trainers, which write it; "
                "set trainer.v1.trainer_mode=gem_sync, or remove metrics",
            ),
            (
                filter_groups.get("enable") and filter_metric != "reward",
                f"algorithm.filter_groups.metric={filter_metric} is undefined for a failed "
                "episode, at which verl would fail; set it to reward",
            ),
            (
                per_turn and actor.policy_loss.get("loss_mode") == "geo_mean",
                "actor.policy_loss.loss_mode=geo_mean takes one advantage per sequence; "
                "use another, such as vanilla",
            ),
            (
                bool(rewards),
                f"{', '.join(rewards)}: verl calls no reward function or manager, because the "
                "environment pays the rewards; remove it, and change rewards in a wrapper around "
                "the environment, or mask cut turns with data.gem.on_cut=mask",
            ),
            (
                bool(turns),
                f"{', '.join(turns)}: gem's agent loop plays the environment and ignores verl's "
                "own multi-turn settings; remove it, and set data.gem.horizon or data.gem.tools",
            ),
            (
                template_kwargs and template_kwargs != dict(config.template_kwargs),
                f"data.apply_chat_template_kwargs={template_kwargs} applies to verl's own agent "
                "loops only; remove it, and set data.gem.template_kwargs",
            ),
            (
                corrected and not rollout.calculate_log_probs,
                "algorithm.rollout_correction needs the sampler's logprobs; set "
                "actor_rollout_ref.rollout.calculate_log_probs=True",
            ),
            (
                bool(settings.reward.reward_model.enable),
                "reward.reward_model.enable=True overwrites the environment's rewards; "
                "set it to False",
            ),
            (
                rewrites and one_sequence,
                f"{rewrites}, which splits an episode into several sequences; {one_sequence}",
            ),
            _incompatible_trl(),
        ]
    )
    warn_if_cut(Sampling(top_p=rollout.top_p, top_k=max(int(rollout.top_k), 0)))
    if not per_turn:
        warnings.warn(
            f"verl's own estimator {name!r} counts a failed episode as one with reward 0. In a "
            "group with two episodes of return 1, grpo then gives these two 0.577 instead of 0. "
            f"Set algorithm.adv_estimator={_EQUIVALENT.get(name, 'gem_rebn')}, which excludes "
            "failed episodes, unless no episode can fail.",
            stacklevel=1,  # always this line, so Python shows the warning once per process
        )


def algorithm_rejections(algorithm: Any, advantage: str) -> list[Rejection]:
    """Return the rejections of settings under `algorithm`."""
    rejection_sampling = (algorithm.get("rollout_correction") or {}).get("rollout_rs")
    scale = (algorithm.get("gem") or {}).get("scale", True)
    return [
        (
            algorithm.get("use_kl_in_reward"),
            "algorithm.use_kl_in_reward=True adds a penalty to every token's reward, which gem's "
            "advantages do not read; set it to False and "
            "actor_rollout_ref.actor.use_kl_loss=True for KL in the loss",
        ),
        (
            rejection_sampling,
            f"algorithm.rollout_correction.rollout_rs={rejection_sampling!r} changes the loss "
            "mask, which splits turns; set it to null (importance weights, `rollout_is`, work)",
        ),
        (
            advantage == "grpo" and not algorithm.get("norm_adv_by_std_in_grpo", True) and scale,
            "algorithm.norm_adv_by_std_in_grpo=False applies to verl's own grpo only; set "
            "+algorithm.gem.scale=False, which is "
            "GemConfig(advantage='grpo', estimator_kwargs={'scale': False})",
        ),
        (
            algorithm.get("use_pf_ppo"),
            "algorithm.use_pf_ppo=True reweights batches for verl's own gae only; set it to False",
        ),
    ]


def _critic_rejections(settings: Any, config: GemConfig, per_turn: bool) -> list[Rejection]:
    """Return the rejections of a critic's settings."""
    lam, own = settings.algorithm.get("lam", 1.0), config.estimator_kwargs.get("lam")
    return [
        (
            per_turn and not config.needs_values and bool(settings.critic.enable),
            "critic.enable=True trains a critic, which only 'gae' uses; set it to null, or "
            "algorithm.adv_estimator=gem_gae",
        ),
        (
            config.needs_values and not settings.critic.enable,
            f"the estimator {config.advantage!r} needs a critic; set critic.enable=True",
        ),
        (
            config.needs_values and not has_gem_trainer(settings),
            f"the estimator {config.advantage!r} needs gem's trainers, which read the critic's "
            "values; set trainer.v1.trainer_mode=gem_sync",
        ),
        (
            config.needs_values and lam not in (1.0, own),  # 1.0 is verl's default
            f"algorithm.lam={lam} applies to verl's own gae, token by token; set "
            f"+algorithm.gem.lam={lam}, which is GemConfig(estimator_kwargs={{'lam': {lam}}})",
        ),
    ]


def has_gem_trainer(settings: Any) -> bool:
    """Return whether one of gem's trainers runs; it marks its settings with `gem_trainer`."""
    v1 = settings.trainer.v1
    return bool(
        settings.trainer.use_v1
        and (v1.get("gem_trainer", False) or str(v1.trainer_mode).startswith(PREFIX))
    )


def rewrites_history(config: GemConfig) -> str:
    """Return what may split an episode into several sequences; "" if nothing does."""
    wrapper = config.rewriting_wrapper()
    if wrapper is not None:
        return f"the wrapper {wrapper!r} rewrites the history"
    if config.history == "template":
        return "history='template' may rewrite the history"
    return ""


def one_sequence_reason(settings: Any, config: GemConfig) -> str:
    """Return why an episode must be one sequence, with the remedy; "" if it may be several."""
    name = str(settings.algorithm.adv_estimator)
    if not name.startswith(PREFIX):
        return (
            f"verl's own estimator {name!r} treats each sequence as an episode; "
            "set algorithm.adv_estimator=gem_rebn"
        )
    if config.needs_groups and not has_gem_trainer(settings):
        return (
            f"the estimator {name!r} compares whole episodes, and only gem's trainers know the "
            "sequences of an episode; set trainer.v1.trainer_mode=gem_sync"
        )
    return ""


def plain(mapping: Any) -> dict[str, Any]:
    """Return a mapping or an OmegaConf config as a plain dictionary."""
    from omegaconf import OmegaConf

    container = (
        OmegaConf.to_container(mapping, resolve=True) if OmegaConf.is_config(mapping) else mapping
    )
    if not isinstance(container, Mapping):
        raise ConfigError(
            "data.gem must be a mapping of fields, such as {env_id: 'game:Wordle-v0'}; "
            f"got {container!r}"
        )
    return {str(key): value for key, value in container.items()}


def _reward_settings(settings: Any) -> list[str]:
    """Return the settings of verl's own rewards, including those in their former places."""
    reward, former = settings.reward, settings.get("reward_model") or {}
    manager, former_function = reward.reward_manager, settings.get("custom_reward_function") or {}
    names = {
        "reward.custom_reward_function.path": reward.custom_reward_function.path,
        "custom_reward_function.path": former_function.get("path"),
        "reward.reward_manager": manager.name != "naive" or manager.source != "register",
        "reward_model.reward_manager": former.get("reward_manager") not in (None, "naive"),
        "reward.reward_kwargs": reward.get("reward_kwargs"),
        "reward_model.reward_kwargs": former.get("reward_kwargs"),
        "reward.sandbox_fusion.url": reward.sandbox_fusion.url,
    }
    return [name for name, value in names.items() if value]


def _turn_settings(multi_turn: Any) -> list[str]:
    """Return the settings that limit the turns or set the tools of verl's own agent loops."""
    names = ("max_assistant_turns", "max_user_turns", "tool_config_path", "function_tool_path")
    return [f"rollout.multi_turn.{name}" for name in names if multi_turn.get(name)]


def _incompatible_trl() -> Rejection:
    """Reject an installed TRL without the class that verl patches when it loads a model."""
    installed, has_class = find_spec("trl"), False
    for module in ("trl.experimental.ppo", "trl"):  # where verl looks for it
        with suppress(ImportError):
            has_class = has_class or hasattr(import_module(module), _VALUE_HEAD)
    where = ", ".join((installed and installed.submodule_search_locations) or ())
    return (
        installed is not None and not has_class,
        f"verl patches TRL's {_VALUE_HEAD} when it loads a model; the TRL in {where} has none. "
        "Install verl into an environment of its own, or remove TRL: pip uninstall trl",
    )


def _hydra(value: Any) -> str:
    """Format a value in hydra's override grammar."""
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
