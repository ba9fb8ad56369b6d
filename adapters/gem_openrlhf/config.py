"""Config: what an OpenRLHF user says about an environment, and what OpenRLHF settings go with it.

OpenRLHF builds an agent executor without arguments, in a process of its own. What it needs to know rides in the label of
each prompt: the data set that `GemConfig.write` makes is the whole configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_core.training.advantage import estimators
from gem_core.training.config import TrainingConfig
from gem_openrlhf import ADAPTER

__all__ = ["GemConfig", "check_args", "read_label"]

_NOT_IN_LABELS = ("seeds", "eval_seeds", "eval_env_kwargs")
_CLIP_RANGE = (-10, 10)


@dataclass
class GemConfig(TrainingConfig):
    """An environment for OpenRLHF: writes the data set of starts that `train_ppo_ray` reads, one row per seed.

    OpenRLHF plays each row `--rollout.n_samples_per_prompt` times. The estimator is used by the trainers `install` puts in.
    """

    adapter = ADAPTER

    metrics: str | None = None
    """Where to append OpenRLHF's and gem's numbers of each update, as JSON lines."""

    def write(self, path: str | os.PathLike[str], *, evaluation: bool = False) -> Path:
        """Writes the starts to train on, or those to evaluate on, as JSON lines for `--data.prompt_dataset`."""
        seeds = self.held_out_seeds if evaluation else self.train_seeds
        if not seeds:
            raise ConfigError(f"there are no starts to write to {path}; give {'eval_seeds' if evaluation else 'seeds'}")
        labels = self._labels(seeds, evaluation)
        rows = [{"input": f"{self.env_id} #{seed}", "label": label} for seed, label in zip(seeds, labels)]
        found = Path(path)
        if found.suffix != ".jsonl":
            raise ConfigError(f"OpenRLHF tells a data set's kind by its name, which must end in .jsonl; given: {found.name!r}")
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return found

    def label(self, seed: int) -> str:
        """What an executor is given to play one start."""
        return self._labels([seed], seed in self.held_out_seeds)[0]

    def _labels(self, seeds: Sequence[int], evaluation: bool) -> list[str]:
        said = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "env_kwargs" and evaluation:
                value = {**value, **self.eval_env_kwargs}
            if field.name == "horizon":
                value = None if value is None else asdict(value)
            if field.name in ("record", "metrics") and value is not None:
                value = os.path.abspath(value)  # Ray's workers may be elsewhere
            if field.name not in _NOT_IN_LABELS and value != field.default:
                said[field.name] = value
        try:
            gem = json.dumps({k: v for k, v in said.items() if v != {}})
        except TypeError as error:
            raise ConfigError(
                f"OpenRLHF's engines read the spec from the data set, so it has to be plain data ({error}); register wrappers "
                "and tools, and give their names"
            ) from error
        return [f'{{"seed": {seed}, "gem": {gem}}}' for seed in seeds]


def read_label(label: Any) -> tuple[GemConfig, int]:
    """The spec and the seed that a row of the data set carries."""
    try:
        said = json.loads(label)
        seed, gem = int(said["seed"]), json.dumps(said["gem"])
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            "a prompt carries no gem task in its label; train on what GemConfig.write made, with --data.label_key label. "
            f"Given: {str(label)[:120]!r}"
        ) from error
    return _spec(gem), seed


@lru_cache(maxsize=64)
def _spec(gem: str) -> GemConfig:
    return GemConfig(**json.loads(gem))


def check_args(args: Any, given: GemConfig | None) -> None:
    """Refuses settings of OpenRLHF's that would break what gem promises, with the remedy. `given`: what is trained on, where
    that could be read."""
    algo, reward = args.algo, args.reward
    refusals = [
        (
            algo.advantage.estimator != "reinforce",
            f"--algo.advantage.estimator {algo.advantage.estimator}: the estimator is GemConfig(advantage=...); give `reinforce`, "
            "for which OpenRLHF loads no critic",
        ),
        (
            algo.advantage.gamma != 1.0,
            f"--algo.advantage.gamma {algo.advantage.gamma} discounts per token, the environment's words included; leave it at 1 "
            "and set GemConfig(gamma=...), which is per turn",
        ),
        (
            algo.advantage.no_std_norm,
            "--algo.advantage.no_std_norm is for OpenRLHF's own estimators; GemConfig(advantage='grpo', "
            "estimator_kwargs={'scale': False}) leaves the division out",
        ),
        (
            algo.kl.init_coef > 0 and not algo.kl.use_loss,
            f"--algo.kl.init_coef {algo.kl.init_coef} puts the KL divergence into the reward of every token, which no turn "
            "earned; add --algo.kl.use_loss to have it in the loss, or set it to 0",
        ),
        (
            reward.overlong_buffer_len is not None or reward.stop_properly_penalty_coef is not None,
            "--reward.overlong_buffer_len and --reward.stop_properly_penalty_coef change one number per episode, which turns "
            "do not have; leave them out, and GemConfig(on_cut='mask') leaves cut turns untrained",
        ),
        (
            tuple(reward.clip_range) != _CLIP_RANGE,
            f"--reward.clip_range {list(reward.clip_range)} clips one number per episode, which turns do not have; leave it out, "
            "and clip in a wrapper around the environment",
        ),
        (
            args.data.max_images_per_prompt > 0,
            "--data.max_images_per_prompt: gem's environments speak text; leave it out",
        ),
        (
            not args.vllm.num_engines,
            "--vllm.num_engines is not given, and agents play on vLLM only; give 1 or more",
        ),
    ]
    if given is not None:
        longest, samples = args.data.max_len, args.rollout.n_samples_per_prompt
        refusals += [
            (
                "groups" in estimators.get(given.advantage).needs and samples < 2,
                f"the estimator {given.advantage!r} compares episodes from one start, and --rollout.n_samples_per_prompt is "
                f"{samples}; give 2 or more",
            ),
            (
                (given.max_turn_tokens or 0) >= longest or (given.max_context or 0) > longest,
                f"max_turn_tokens={given.max_turn_tokens} and max_context={given.max_context} do not fit --data.max_len "
                f"{longest}, which caps the whole episode; raise the latter",
            ),
        ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)


def check_gpus(args: Any, there: int) -> None:
    """Refuses what OpenRLHF would wait for without end: GPUs for actor and engines that Ray does not have."""
    actor = args.actor.num_nodes * args.actor.num_gpus_per_node
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    shared = args.train.colocate_all and not args.train.async_enable
    if there < (actor if shared else actor + engines):
        raise ConfigError(
            f"Ray knows of {there} GPUs here; the actor asks for {actor}, vLLM for {engines}{' of the same' if shared else ''}, "
            "and OpenRLHF would wait for them for ever. Ask for fewer (--actor.num_gpus_per_node, --vllm.num_engines), or have "
            "the two share theirs (--train.colocate_all, not with --train.async_enable)"
        )
