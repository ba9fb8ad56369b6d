"""Config: what a verl user says about an environment, which verl settings it becomes, and which it refuses."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.env.registry import spec as env_spec
from gem_core.errors import ConfigError, GemError
from gem_core.policies.base import warn_if_cut
from gem_core.training.advantage import check_estimator, estimators
from gem_core.training.config import TrainingConfig
from gem_core.types import Sampling, Task
from gem_verl import ADAPTER

__all__ = [
    "AGENT",
    "PREFIX",
    "GemConfig",
    "NotRegisteredError",
    "channel",
    "check_algorithm",
    "check_config",
    "check_neighbours",
    "check_registered",
    "one_row_only",
    "spec_fields",
    "spec_of",
    "warn_of_failed",
]

AGENT = "gem"
"""The name of the agent loop."""
PREFIX = "gem_"
"""What stands before the names of gem's estimators and trainers in verl's registries."""
_ELSEWHERE = {"advantage": "algorithm.adv_estimator", "gamma": "algorithm.gamma", "estimator_kwargs": "algorithm.gem"}
_PATCHED = "AutoModelForCausalLMWithValueHead"
_ONE_NUMBER_PER_ROW = ("geo_mean",)
_IN_PLACE_OF = {"grpo": "gem_grpo", "rloo": "gem_rloo", "reinforce_plus_plus": "gem_reinforce++"}
"""gem's estimator in the place of one of verl's own; that of any other is gem_rebn."""


class NotRegisteredError(GemError, RuntimeError):
    """Raised when verl does not know gem's agent loop, estimators or trainers, since verl swallows what a plugin raises."""


@dataclass
class GemConfig(TrainingConfig):
    """An environment for verl: gives the hydra overrides that make `verl.trainer.main_ppo` train on it.

    Each seed becomes one prompt, which verl plays `rollout.n` times. The same fields can be set by hand, under `data.gem`.
    """

    adapter = ADAPTER

    eval_envs: Sequence[str] | str = ()
    """The environments to validate on, with the same wrappers and limits; empty: the one that is trained on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for id in self.validated:
            env_spec(id)

    @property
    def validated(self) -> list[str]:
        """The environments to validate on."""
        given = [self.eval_envs] if isinstance(self.eval_envs, str) else list(self.eval_envs)
        return [id for id in given if id] or [self.env_id]

    def overrides(self) -> list[str]:
        """What to put behind `python -m verl.trainer.main_ppo`, before the settings that are verl's own."""
        given = [
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
            given.append(f"+algorithm.gem={_hydra(dict(self.estimator_kwargs))}")
        if not self.held_out_seeds:
            given += ["trainer.val_before_train=False", "trainer.test_freq=-1"]
        for field in fields(self):
            value = getattr(self, field.name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if field.name not in _ELSEWHERE and value != default:
                given.append(f"+data.gem.{field.name}={_hydra(value)}")
        return given

    def task_of(self, row: Mapping[str, Any]) -> Task:
        """The episode a row of the data set asks for."""
        carried = (row.get("extra_info") or {}).get("gem") or {}
        if "seed" not in carried:
            raise ConfigError(
                "a row of the data set carries no gem task; train on gem_verl.GemDataset, or give each row an extra_info with "
                f"'gem': {{'seed': 7}}. Given: {str(dict(row))[:120]}"
            )
        task = self.task(int(carried["seed"]))
        env_id = carried.get("env_id") or self.env_id
        return task if env_id == self.env_id else Task(env_id, task.seed, task.options, task.wrappers, task.env_kwargs)


def spec_of(config: Any, more: Mapping[str, Any] | None = None) -> GemConfig:
    """The spec in a trainer's configuration: `data.gem`, and over it what an agent loop's own YAML entry says (`more`)."""
    given = spec_fields({**_plain(config.data.get("gem") or {}), **_plain(more or {})})
    name, algorithm = str(config.algorithm.adv_estimator), config.algorithm
    here = {"gamma": float(algorithm.gamma), "estimator_kwargs": _plain(algorithm.get("gem") or {})}
    if name.startswith(PREFIX):
        here["advantage"] = name.removeprefix(PREFIX)
    for key, place in _ELSEWHERE.items():
        if key in given and given[key] != here.get(key):
            raise ConfigError(
                f"data.gem.{key} is {given[key]!r}, {place} is {here.get(key, name)!r}: loop and estimator must go by one, so "
                f"leave data.gem.{key} out"
            )
    return GemConfig(**{**given, **here})


def spec_fields(given: Any) -> dict[str, Any]:
    """The fields of a spec, as a configuration holds them."""
    found = _plain(given)
    known = [field.name for field in fields(GemConfig)]
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(f"data.gem has no field {name!r}{f'; did you mean {near[0]!r}?' if near else ''}. It has: {known}")
    if "env_id" not in found:
        raise ConfigError("data.gem.env_id is missing: the environment to train on, as in +data.gem.env_id=game:Wordle-v0")
    return found


def channel(algorithm: Any) -> dict[str, Any]:
    """How the reward channel is written for the estimator that will read it; see `to_rows`.

    An estimator of verl's own discounts per token or sums a row up: it gets the rewards as they were paid.
    """
    name = str(algorithm.adv_estimator)
    if not name.startswith(PREFIX):
        return {"gamma": 1.0, "whole": True}
    return {"gamma": float(algorithm.gamma), "whole": "groups" in estimators.get(name.removeprefix(PREFIX)).needs}


def check_algorithm(algorithm: Any, name: str) -> dict[str, Any]:
    """Refuses what would reach the estimator between the reward channel and the turns; returns the estimator's arguments."""
    if "values" in estimators.get(name).needs:
        raise ConfigError(
            f"the estimator {name!r} needs a critic's values, which verl hands to its own 'gae' only; use gem_rebn, or verl's "
            "gae with gamma=1 and its critic, which knows nothing of turns"
        )
    arguments: dict[str, Any] = _plain(algorithm.get("gem") or {})
    check_estimator(name, {"gamma", *arguments})
    correction = algorithm.get("rollout_correction") or {}
    refusals = [
        (
            algorithm.get("use_kl_in_reward"),
            "algorithm.use_kl_in_reward=True writes a penalty on every token, which would be taken for the environment's "
            "reward; set it to False, and actor_rollout_ref.actor.use_kl_loss=True for KL in the loss",
        ),
        (
            correction.get("rollout_rs"),
            f"algorithm.rollout_correction.rollout_rs={correction.get('rollout_rs')!r} changes the mask before the estimator "
            "sees it, so that turns fall apart; leave it null (rollout_is, importance weights, can stay)",
        ),
        (
            name == "grpo" and not algorithm.get("norm_adv_by_std_in_grpo", True) and arguments.get("scale", True),
            "algorithm.norm_adv_by_std_in_grpo=False is for verl's own grpo; +algorithm.gem.scale=False, which is "
            "GemConfig(advantage='grpo', estimator_kwargs={'scale': False}), leaves the division out",
        ),
        (
            algorithm.get("use_pf_ppo"),
            "algorithm.use_pf_ppo=True draws rows anew behind verl's own gae only, and would do nothing here; set it to False",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)
    return arguments


def check_config(config: Any, given: GemConfig | None = None) -> GemConfig:
    """Refuses settings that would break what gem promises, with the remedy; returns the spec that is in them."""
    require(ADAPTER)
    check_neighbours()
    given = spec_of(config) if given is None else given
    name = str(config.algorithm.adv_estimator)
    own = name.startswith(PREFIX)
    if own:
        check_algorithm(config.algorithm, name.removeprefix(PREFIX))
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    loss_mode = actor.policy_loss.get("loss_mode", "vanilla")
    filtered = config.algorithm.get("filter_groups") or {}
    refusals = [
        (
            "groups" in estimators.get(given.advantage).needs and rollout.n < 2,
            f"the estimator {given.advantage!r} compares episodes from one start, and actor_rollout_ref.rollout.n is "
            f"{rollout.n}; set it to 2 or more, as in actor_rollout_ref.rollout.n=8",
        ),
        (
            own and bool(config.critic.enable),
            "critic.enable=True trains a critic whose values verl hands to its own 'gae' only; leave it null",
        ),
        (
            filtered.get("enable") and filtered.get("metric") != "reward",
            f"algorithm.filter_groups.metric={filtered.get('metric')} is unknown of a failed episode, at which verl would end the "
            "training; set it to reward",
        ),
        (
            own and loss_mode in _ONE_NUMBER_PER_ROW,
            f"actor.policy_loss.loss_mode={loss_mode} takes one advantage per row; use another, such as vanilla",
        ),
        (
            bool(config.reward.reward_model.enable),
            "reward.reward_model.enable=True would write its own scores over the environment's rewards; set it to False",
        ),
        (
            given.max_turn_tokens is not None and given.max_turn_tokens > rollout.response_length,
            f"max_turn_tokens={given.max_turn_tokens} is over data.max_response_length={rollout.response_length}, which caps "
            "the whole row behind its prompt; raise the latter",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)
    wrapper = given.rewriting_wrapper()
    why_one_row = one_row_only(config)
    if wrapper is not None and why_one_row:
        raise ConfigError(f"the wrapper {wrapper!r} rewrites the context, so that an episode is several rows; {why_one_row}")
    warn_if_cut(Sampling(top_p=rollout.top_p, top_k=max(int(rollout.top_k), 0)))
    if not own:
        warn_of_failed(name)
    return given


def warn_of_failed(name: str) -> None:
    """Warns that an estimator of verl's own takes an unknown reward for 0; verl offers it no way to leave a row out."""
    warnings.warn(
        f"verl's own estimator {name!r} counts a failed episode (its environment broke, or ran out of time) as one with reward 0: "
        "with two episodes that earned 1, grpo gives those 0.577 each in place of 0. Set "
        f"algorithm.adv_estimator={_IN_PLACE_OF.get(name, 'gem_rebn')}, which leaves it out, unless nothing can break.",
        stacklevel=1,  # this line, whoever checks: Python then shows it once in a process
    )


def one_row_only(config: Any) -> str:
    """Why an episode may not be several rows under these settings, and what to do; empty where it may."""
    name = str(config.algorithm.adv_estimator)
    if not config.trainer.get("use_v1", False):
        return "verl's legacy trainer takes one row per episode: set trainer.use_v1=True, or leave the wrapper out"
    if not name.startswith(PREFIX):
        return f"verl's own estimator {name!r} reads rewards of whole rows: set algorithm.adv_estimator=gem_rebn"
    if channel(config.algorithm)["whole"] and not config.trainer.v1.get("gem_trainer", False):
        return (
            f"the estimator {name!r} compares whole episodes, and only gem's trainers know which rows belong to one: set "
            "trainer.v1.trainer_mode=gem_sync"
        )
    return ""


def check_neighbours() -> None:
    """That verl can load a model beside the TRL that is installed, if any: it patches a class of TRL's, which newer ones lack."""
    found = find_spec("trl")
    if found is None:
        return
    for module in ("trl.experimental.ppo", "trl"):  # where verl looks for it
        try:
            if hasattr(import_module(module), _PATCHED):
                return
        except ImportError:
            continue
    where = ", ".join(found.submodule_search_locations or ())
    raise ConfigError(
        f"verl patches TRL's {_PATCHED} as it loads a model, and the TRL in {where} has none; use an environment of "
        "its own for verl, or take TRL out of this one: pip uninstall trl"
    )


def check_registered() -> None:
    """That verl knows gem in this process; verl logs a plugin's error at level DEBUG and goes on."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    wanted = {AGENT: _agent_loop_registry, "gem_rebn": ADV_ESTIMATOR_REGISTRY, "gem_sync": TRAINER_REGISTRY}
    missing = [name for name, registry in wanted.items() if name not in registry]
    if missing:
        raise NotRegisteredError(
            f"verl does not know {', '.join(missing)}: its plugin entry point `gem` was not loaded. If it broke, `python -c "
            "'import verl'` shows why. If that shows nothing, it was left out, by VERL_USE_EXTERNAL_PLUGINS or since gem is on "
            "the path without being installed; VERL_USE_EXTERNAL_MODULES=gem_verl.plugin then brings it in"
        )


def _plain(given: Any) -> dict[str, Any]:
    """A mapping of OmegaConf's, or an ordinary one, as a dictionary."""
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else dict(given)
    if not isinstance(found, dict):
        raise ConfigError(f"data.gem is a mapping of fields, as in {{env_id: 'game:Wordle-v0'}}; given: {found!r}")
    return {str(key): value for key, value in found.items()}


def _hydra(value: Any) -> str:
    """A value in the grammar of hydra's overrides."""
    from gem_core.training.horizon import HorizonSchedule

    if isinstance(value, HorizonSchedule):
        value = {"rounds": list(value.rounds), "every": value.every}
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, str):
        # in hydra's grammar, a backslash stands for itself unless a quote follows
        return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_hydra(item) for item in value) + "]"
    raise ConfigError(f"a setting of verl is made of numbers, text, lists and mappings; given: {type(value).__name__} {value!r}")
