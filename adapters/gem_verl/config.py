"""Config: the environment to train on with verl, and the check of verl's own settings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import reject
from gem_core.env.registry import check_make
from gem_core.errors import ConfigError
from gem_core.policies.base import warn_if_cut
from gem_core.training.config import TrainingConfig
from gem_core.types import Sampling, Task
from gem_verl import ADAPTER
from gem_verl.checks import PREFIX, rejections

__all__ = [
    "AGENT",
    "PREFIX",
    "GemConfig",
    "check_settings",
    "hydra_config",
    "plain",
    "read_config",
]

AGENT = "gem"
"""The name of gem's agent loop in verl's registry."""
_IN_ALGORITHM = {
    "advantage": "algorithm.adv_estimator",
    "gamma": "algorithm.gamma",
    "estimator_kwargs": "algorithm.gem",
}
"""The fields of `GemConfig` that verl's settings hold outside `data.gem`."""
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
            check_make(
                env_id,
                wrappers=self.all_wrappers,
                options=self.options,
                env_kwargs={**self.env_kwargs, **self.eval_env_kwargs},
            )

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
            "data.dataloader_num_workers=0",  # verl starts 16 processes, for lists of seeds
            "reward.num_workers=1",  # verl starts 8 processes, which would do nothing
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
    reject(rejections(settings, config))
    rollout, name = settings.actor_rollout_ref.rollout, str(settings.algorithm.adv_estimator)
    warn_if_cut(Sampling(top_p=rollout.top_p, top_k=max(int(rollout.top_k), 0)))
    if not name.startswith(PREFIX):
        warnings.warn(
            f"verl's own estimator {name!r} counts a failed episode as one with reward 0. In a "
            "group with two episodes of return 1, grpo then gives these two 0.577 instead of 0. "
            f"Set algorithm.adv_estimator={_EQUIVALENT.get(name, 'gem_rebn')}, which excludes "
            "failed episodes, unless no episode can fail.",
            stacklevel=1,  # always this line, so Python shows the warning once per process
        )
    if (settings.algorithm.get("rollout_correction") or {}).get("rollout_is") == "sequence":
        warnings.warn(
            "algorithm.rollout_correction.rollout_is=sequence multiplies the ratios of all tokens "
            "of a sequence, so a long episode is weighted as a whole: its turns share one weight. "
            "Set it to token for one ratio per token.",
            stacklevel=1,  # see above
        )


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
