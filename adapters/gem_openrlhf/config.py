"""Config: the environment to train on in OpenRLHF, and the OpenRLHF settings that do not fit it.

OpenRLHF constructs an agent executor without arguments, in another process. So the label of each data-set row carries the
config and the seed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import Rejection, few_samples, long_turns, reject
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_openrlhf import ADAPTER

__all__ = ["GemConfig", "carried_fields", "check_settings", "config_of"]

_CLIP_RANGE = (-10, 10)
"""OpenRLHF's default."""


@dataclass
class GemConfig(TrainingConfig):
    """An environment for OpenRLHF: `train(config, settings)`.

    Each seed becomes one row of the data set, which OpenRLHF plays `--rollout.n_samples_per_prompt` times.
    """

    adapter = ADAPTER

    def labels(self, seeds: Sequence[int]) -> list[str]:
        """The labels of data-set rows: each carries its seed, and the config without seeds."""
        train, evaluation, held_out = (
            self._carried({}),
            self._carried(self.eval_env_kwargs),
            set(self.held_out_seeds),
        )
        return [
            f'{{"seed": {seed}, "gem": {evaluation if seed in held_out else train}}}'
            for seed in seeds
        ]

    def task_of(self, label: Any) -> Task:
        """The task of a data-set row's label."""
        return self.task(_read(label)[0])

    def _carried(self, more_env_kwargs: Mapping[str, Any]) -> str:
        data = self.to_dict()
        for name in ("seeds", "eval_seeds", "eval_env_kwargs"):
            data.pop(name, None)
        if more_env_kwargs:
            data["env_kwargs"] = {**self.env_kwargs, **more_env_kwargs}
        for name in {"record", "metrics"} & data.keys():
            data[name] = os.path.abspath(
                data[name]
            )  # Ray's workers may have another working directory
        return json.dumps(data)


def config_of(label: Any) -> GemConfig:
    """The config that a data-set row's label carries."""
    return _config(json.dumps(carried_fields(label)))


def carried_fields(label: Any) -> dict[str, Any]:
    """The fields of that config as plain data, which needs no environment."""
    return _read(label)[1]


def check_settings(settings: Any, config: GemConfig | None, gpus: int) -> None:
    """Raise `ConfigError` for all settings of OpenRLHF that would break gem's promises, with the remedies.

    `settings` are OpenRLHF's parsed flags. `config` is None if the data set cannot be read before its rows are played. `gpus`
    is the number of GPUs Ray has.
    """
    require(ADAPTER)
    algo, reward, longest = settings.algo, settings.reward, settings.data.max_len
    actor = settings.actor.num_nodes * settings.actor.num_gpus_per_node
    engines = (settings.vllm.num_engines or 0) * settings.vllm.tensor_parallel_size
    shared = settings.train.colocate_all and not settings.train.async_enable
    rejections: list[Rejection] = [
        (
            algo.advantage.estimator != "reinforce",
            f"--algo.advantage.estimator {algo.advantage.estimator}: the estimator is GemConfig(advantage=...); set the flag to "
            "`reinforce`, for which OpenRLHF loads no critic",
        ),
        (
            algo.advantage.gamma != 1.0,
            f"--algo.advantage.gamma {algo.advantage.gamma} discounts per token, observation tokens included; remove it, and set "
            "GemConfig(gamma=...), which discounts per turn",
        ),
        (
            algo.advantage.no_std_norm,
            "--algo.advantage.no_std_norm is for OpenRLHF's own estimators; remove it, and use GemConfig(advantage='grpo', "
            "estimator_kwargs={'scale': False}) for advantages that are not scaled",
        ),
        (
            algo.kl.init_coef > 0 and not algo.kl.use_loss,
            f"--algo.kl.init_coef {algo.kl.init_coef} adds the KL divergence to the reward of every token, which is not the "
            "environment's; add --algo.kl.use_loss for a KL term in the loss, or set it to 0",
        ),
        (
            reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None,
            "--reward.overlong_buffer_len and --reward.stop_properly_penalty_coef change the reward of an episode, but "
            "advantages are computed from the rewards of its turns; remove them, or mask cut turns by GemConfig(on_cut='mask')",
        ),
        (
            tuple(reward.clip_range) != _CLIP_RANGE,
            f"--reward.clip_range {list(reward.clip_range)} clips the reward of an episode, but advantages are computed from "
            "the rewards of its turns; remove it, and clip in a wrapper around the environment",
        ),
        (
            settings.data.max_images_per_prompt > 0,
            "--data.max_images_per_prompt: gem's environments are text only; remove it",
        ),
        (
            not settings.vllm.num_engines,
            "--vllm.num_engines is not set, and agents generate with vLLM only; set it to 1 or more",
        ),
        (
            gpus < (actor if shared else actor + engines),
            f"Ray has {gpus} GPUs; the actor needs {actor} and vLLM {engines}{' of the same' if shared else ''}, for which "
            "OpenRLHF would wait forever. Use fewer (--actor.num_gpus_per_node, --vllm.num_engines), or let the two share theirs "
            "(--train.colocate_all, not with --train.async_enable)",
        ),
    ]
    if config is not None:
        rejections += [
            few_samples(
                config, settings.rollout.n_samples_per_prompt, "--rollout.n_samples_per_prompt"
            ),
            long_turns(config, longest, "--data.max_len"),
            (
                config.max_context is not None and config.max_context > longest,
                f"max_context={config.max_context} is above --data.max_len={longest}, which caps the whole episode; raise "
                "the latter",
            ),
        ]
    reject(rejections)


def _read(label: Any) -> tuple[int, dict[str, Any]]:
    """(seed, fields of the config) of a label."""
    try:
        data = json.loads(label)
        return int(data["seed"]), dict(data["gem"])
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            "a data-set row carries no gem task in its label; train on what gem_openrlhf.write_dataset wrote, with "
            f"--data.label_key label. Given: {str(label)[:120]!r}"
        ) from error


@lru_cache(maxsize=64)
def _config(fields: str) -> GemConfig:
    return GemConfig.from_dict(json.loads(fields), where="the label of a data-set row")
