"""Config: the environment to train on with OpenRLHF, and the check of OpenRLHF's own settings.

OpenRLHF constructs an agent executor in another process, without arguments. Therefore the label of
each dataset row carries the config and the seed.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import Rejection, few_samples, long_turns, reject, too_small
from gem_core.errors import ConfigError
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_openrlhf import ADAPTER

__all__ = [
    "GemConfig",
    "check_settings",
    "config_of",
    "estimator_flag",
    "is_evaluation",
]

_CLIP_RANGE = (-10, 10)
"""OpenRLHF's default of `--reward.clip_range`."""
_NO_EVALUATION = -1
"""OpenRLHF's default of `--eval.steps`."""


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for OpenRLHF: the environment, its limits and the advantage estimator.

    Each seed becomes one row of the dataset, which OpenRLHF plays
    `--rollout.n_samples_per_prompt` times.
    """

    adapter = ADAPTER

    def labels(self, seeds: Sequence[int]) -> list[str]:
        """Return labels of dataset rows. Each carries its seed, and the config without seeds."""
        train, evaluation = self._carried({}), self._carried(self.eval_env_kwargs)
        held_out = set(self.held_out_seeds)
        return [
            f'{{"seed": {seed}, "evaluation": true, "gem": {evaluation}}}'
            if seed in held_out
            else f'{{"seed": {seed}, "gem": {train}}}'
            for seed in seeds
        ]

    def task_of(self, label: Any) -> Task:
        """Return the task of a dataset row's label."""
        return self.task(_read(label)[0])

    def _carried(self, more_env_kwargs: Mapping[str, Any]) -> str:
        """Return the config as a label carries it: JSON, without seeds."""
        data = self.to_dict()
        for name in ("seeds", "eval_seeds", "eval_env_kwargs"):
            data.pop(name, None)
        if more_env_kwargs:
            data["env_kwargs"] = {**self.env_kwargs, **more_env_kwargs}
        for name in {"record", "metrics"} & data.keys():
            # Ray's workers may have another working directory
            data[name] = os.path.abspath(data[name])
        return json.dumps(data)


def config_of(label: Any) -> GemConfig:
    """Return the config that a dataset row's label carries."""
    return _config(json.dumps(_read(label)[1]))


def is_evaluation(label: Any) -> bool:
    """Return whether a dataset row's label carries a seed to evaluate on."""
    return bool(json.loads(label).get("evaluation"))


def estimator_flag(config: GemConfig | None) -> str:
    """Return the value of `--algo.advantage.estimator`: whether OpenRLHF loads a critic."""
    return "gae" if config is not None and config.needs_values else "reinforce"


def check_settings(settings: Any, config: GemConfig | None, gpus: int) -> None:
    """Raise one `ConfigError` that lists every OpenRLHF setting gem does not support.

    `settings`: OpenRLHF's parsed flags. `config`: None if the dataset cannot be read before its
    rows are played. `gpus`: the number of GPUs in the Ray cluster.
    """
    require(ADAPTER)
    algo, reward, longest = settings.algo, settings.reward, settings.data.max_len
    actor = settings.actor.num_nodes * settings.actor.num_gpus_per_node
    engines = (settings.vllm.num_engines or 0) * settings.vllm.tensor_parallel_size
    shared = settings.train.colocate_all and not settings.train.async_enable
    with_actor = settings.train.colocate_all or settings.train.colocate_actor_ref
    # OpenRLHF loads a reference model for the KL divergence only
    alone = algo.kl.init_coef > 0 and not with_actor
    reference = settings.ref.num_nodes * settings.ref.num_gpus_per_node if alone else 0
    own_critic = algo.advantage.estimator == "gae" and not settings.train.colocate_all
    critic = settings.critic.num_nodes * settings.critic.num_gpus_per_node if own_critic else 0
    batch = settings.rollout.batch_size * settings.rollout.n_samples_per_prompt
    rejections: list[Rejection] = [
        too_small("--train.batch_size", settings.train.batch_size, 1),
        (
            algo.advantage.estimator not in ("reinforce", "gae")
            or (config is not None and algo.advantage.estimator != estimator_flag(config)),
            f"--algo.advantage.estimator {algo.advantage.estimator}: GemConfig(advantage=...) "
            "names the estimator instead; set the flag to `gae` for an estimator that needs a "
            "critic, otherwise to `reinforce`, for which OpenRLHF loads none",
        ),
        (
            algo.advantage.lambd != 1.0,
            f"--algo.advantage.lambd {algo.advantage.lambd} applies per token; remove it, and set "
            "GemConfig(estimator_kwargs={'lam': ...}), which applies per turn",
        ),
        (
            algo.advantage.gamma != 1.0,
            f"--algo.advantage.gamma {algo.advantage.gamma} discounts per token, observation "
            "tokens included; remove it, and set GemConfig(gamma=...), which discounts per turn",
        ),
        (
            algo.advantage.no_std_norm,
            "--algo.advantage.no_std_norm applies to OpenRLHF's own estimators only; remove it, "
            "and use GemConfig(advantage='grpo', estimator_kwargs={'scale': False}) for unscaled "
            "advantages",
        ),
        (
            settings.actor.policy_loss_type != "ppo",
            f"--actor.policy_loss_type {settings.actor.policy_loss_type} gives every token the "
            "mean advantage of its sequence, so turns with opposite advantages cancel; set it to "
            "ppo",
        ),
        (
            algo.kl.init_coef > 0 and not algo.kl.use_loss,
            f"--algo.kl.init_coef {algo.kl.init_coef} adds the KL divergence to the reward of "
            "every token, but gem's advantages use the environment's rewards only; add "
            "--algo.kl.use_loss for a KL term in the loss, or set it to 0",
        ),
        (
            reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None,
            "--reward.overlong_buffer_len and --reward.stop_properly_penalty_coef change the "
            "reward of an episode, but gem computes advantages from the rewards of its turns; "
            "remove them, or mask cut turns with GemConfig(on_cut='mask')",
        ),
        (
            tuple(reward.clip_range) != _CLIP_RANGE,
            f"--reward.clip_range {list(reward.clip_range)} clips the reward of an episode, but "
            "gem computes advantages from the rewards of its turns; remove it, and clip in a "
            "wrapper around the environment",
        ),
        (
            settings.data.input_template is not None,
            "--data.input_template applies to the prompts of a dataset, but environments make "
            "their own; remove it (GemConfig(template_kwargs=...) sets variables of the chat "
            "template, and a wrapper can change observations)",
        ),
        (
            settings.data.apply_chat_template,
            "--data.apply_chat_template applies to the prompts of a dataset; remove it: gem always "
            "renders observations with the chat template",
        ),
        (
            settings.data.max_images_per_prompt > 0,
            "--data.max_images_per_prompt: gem's environments are text only; remove it",
        ),
        (
            settings.ds.lora.rank > 0
            and (
                settings.ds.zero_stage == 3
                or settings.ds.tensor_parallel_size > 1
                or settings.ds.load_in_4bit
            ),
            f"--ds.lora.rank {settings.ds.lora.rank} with --ds.zero_stage 3, "
            "--ds.tensor_parallel_size above 1 or --ds.load_in_4bit: gem adds the adapter to the "
            "weights for vLLM, which needs whole, unquantized weights on each GPU; set "
            "--ds.zero_stage 2 and remove the others, or train without LoRA",
        ),
        (
            settings.train.dynamic_batch_enable and batch % max(settings.train.batch_size, 1) > 0,
            f"--train.dynamic_batch_enable with --train.batch_size {settings.train.batch_size} "
            f"drops the rest of {batch} episodes (--rollout.batch_size times "
            "--rollout.n_samples_per_prompt); set it to a divisor, or remove the flag",
        ),
        (
            bool(settings.eval.dataset) and settings.eval.steps < 1,
            f"--eval.steps {settings.eval.steps} with seeds to evaluate on "
            "(GemConfig(eval_seeds=...) or --eval.dataset): OpenRLHF would never evaluate; set it "
            "to the number of updates between two evaluations, or remove the seeds",
        ),
        (
            not settings.eval.dataset and settings.eval.steps != _NO_EVALUATION,
            f"--eval.steps {settings.eval.steps} without seeds to evaluate on: there is nothing to "
            "evaluate; set GemConfig(eval_seeds=...), or remove the flag",
        ),
        (
            not settings.vllm.num_engines,
            "--vllm.num_engines is not set, and agents generate with vLLM only; "
            "set it to 1 or more",
        ),
        (
            gpus < actor + reference + critic + (0 if shared else engines),
            f"Ray has {gpus} GPUs, but the actor needs {actor}, the reference model needs "
            f"{reference} more, the critic needs {critic} more and vLLM needs "
            f"{engines}{' of the same' if shared else ' more'}, so OpenRLHF would wait forever; "
            "use fewer (--actor.num_gpus_per_node, --ref.num_gpus_per_node, "
            "--critic.num_gpus_per_node, --vllm.num_engines), or share them "
            "(--train.colocate_actor_ref; --train.colocate_all, not with --train.async_enable)",
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
                f"max_context={config.max_context} is above --data.max_len={longest}, which caps "
                "the whole episode; raise --data.max_len",
            ),
            (
                settings.train.dynamic_batch_enable
                and (config.history == "template" or config.rewriting_wrapper() is not None),
                "--train.dynamic_batch_enable drops sequences of an episode whose history is "
                "rewritten; remove it, or use history='append' without a rewriting wrapper",
            ),
        ]
        if one_turn := settings.rollout.max_new_tokens:
            rejections.append(long_turns(config, one_turn, "--rollout.max_new_tokens", "one turn"))
    reject(rejections)
    if algo.advantage.is_correction_level == "seq":
        warnings.warn(
            "--algo.advantage.is_correction_level seq keeps or drops all turns of an episode by "
            "the mean over its tokens. Set it to token for one ratio per token.",
            stacklevel=1,  # always this line, so Python shows the warning once per process
        )


def _read(label: Any) -> tuple[int, dict[str, Any]]:
    """Return (seed, fields of the config) of a label."""
    try:
        data = json.loads(label)
        return int(data["seed"]), dict(data["gem"])
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            "the label of a dataset row has no gem task; train on a file that "
            "gem_openrlhf.write_dataset wrote, with --data.label_key label. "
            f"Got: {str(label)[:120]!r}"
        ) from error


@lru_cache(maxsize=64)
def _config(fields: str) -> GemConfig:
    return GemConfig.from_dict(json.loads(fields), where="the label of a dataset row")
