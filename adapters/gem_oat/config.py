"""Config: the environment to train on in oat, and the oat settings that do not fit it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import few_samples, reject
from gem_core.arguments import whole_number
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_oat import ADAPTER

__all__ = ["GemConfig", "check_settings", "learners", "ppo_kwargs"]


@dataclass
class GemConfig(TrainingConfig):
    """An environment for oat: `train(config, PPOArgs(..., **ppo_kwargs(config)))`.

    Actors play without end: an episode that is unfinished when a batch is full continues in the next one.
    """

    adapter = ADAPTER

    samples: int = 1
    """Episodes from each seed: the group of `grpo` and `rloo`. They enter a batch together."""
    concurrency: int = 32
    """Episodes in play at once, for each actor. More fill the GPU; fewer leave less to carry over, sampled from older weights."""
    batch_wait: float = 0.05
    """Seconds a generation batch waits for episodes whose environment is still busy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("samples", self.samples, 1)
        whole_number("concurrency", self.concurrency, 1)
        reject(
            [
                few_samples(self, self.samples, "samples"),
                (
                    self.episode_deadline is not None,
                    "episode_deadline would also count the seconds in which oat trains and episodes wait; use step_deadline for "
                    "slow environments and horizon for long episodes",
                ),
                (
                    not self.train_seeds,
                    "there is no seed to train on; set seeds to a number of them, or a list",
                ),
            ]
        )

    @property
    def lam(self) -> float:
        """GAE's λ: the estimator's, and that of the critic's targets."""
        return float(self.estimator_kwargs.get("lam", 0.95))

    def task_of(self, index: int, actor: int = 0, actors: int = 1, order: int = 0) -> Task:
        """The task that an actor plays as its `index`-th, because oat hands over no prompts. Actors share the seeds, each played
        `samples` times, and take them in another order in every epoch; `order` is the seed of these orders."""
        share = len(range(actor, len(self.train_seeds), actors)) * self.samples
        epoch, place = divmod(index, share)
        seeds = _shuffled(
            tuple(self.train_seeds), f"{order} {epoch}"
        )  # the same on every actor: shares do not overlap
        return self.task(seeds[actor::actors][place // self.samples], index)


def ppo_kwargs(config: GemConfig) -> dict[str, Any]:
    """Keyword arguments of `PPOArgs` that follow from the config. All others are yours to set."""
    settings = {
        "algo": "PPO",
        "oracle": "",
        "prompt_data": "",
        "critic_type": "ppo" if config.needs_values else "drgrpo",
        "gamma": config.gamma,
        "lam": config.lam,
        "num_samples": 1,  # groups are made of episodes, not of completions of one prompt
        "num_gpus_per_actor": 1,
        "train_batch_size_per_device": 1,
        "buffer_clear_every": 1,
        "pi_buffer_maxlen_per_device": 1_000_000,  # a shorter buffer drops transitions without a message
        "whiten_adv": False,
    }
    if config.max_turn_tokens is not None:
        settings["generate_max_length"] = config.max_turn_tokens
    if not config.held_out_seeds:
        settings["eval_steps"] = -1
    return settings


def learners(args: Any) -> int:
    """How many learners, and so how many actors, oat starts with these arguments."""
    here = args.gpus if args.collocate else args.gpus - args.gpus // 2
    return int(here * args.num_groups)


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise `ConfigError` for all of oat's settings that would break gem's promises, with the remedies."""
    require(ADAPTER)
    args = settings
    ranks, size, total = learners(args), args.rollout_batch_size_per_device, args.rollout_batch_size
    longest = max(config.schedule.rounds) if config.schedule is not None else 1
    reject(
        [
            *(
                (
                    getattr(args, name) != value,
                    f"{name}={getattr(args, name)!r} does not fit this GemConfig, which needs {name}={value!r}; build the "
                    "arguments as PPOArgs(..., **ppo_kwargs(config)), and change the GemConfig instead",
                )
                for name, value in ppo_kwargs(config).items()
            ),
            (
                total != ranks * size,
                f"rollout_batch_size={total} is not {ranks} learner(s) times rollout_batch_size_per_device={size}, so an update "
                "would consist of several collections, each with its own statistics; make them agree",
            ),
            (
                args.train_batch_size < 1 or total % args.train_batch_size != 0,
                f"train_batch_size={args.train_batch_size} does not divide rollout_batch_size={total}, so gradients would be "
                "left over for the next batch; make it a divisor, or equal to it for one update per batch",
            ),
            (
                args.train_batch_size % ranks != 0,
                f"train_batch_size={args.train_batch_size} is not a multiple of the {ranks} learner(s); make it one",
            ),
            (
                args.max_train < total,
                f"max_train={args.max_train} transitions are less than one batch of {total}; it is the number trained on in all: "
                "batch size times updates",
            ),
            (
                config.samples * longest > size,
                f"{config.samples} episode(s) of {longest} turns from one seed do not fit into "
                f"rollout_batch_size_per_device={size}; raise it",
            ),
            (
                len(config.train_seeds) < ranks,
                f"{len(config.train_seeds)} seed(s) are too few for {ranks} actors, which share them; set more seeds",
            ),
            (
                args.reinforce_update,
                "reinforce_update=True divides by zero in oat's multi-turn learner; remove it: with num_ppo_epochs=1 and one "
                "update per batch the gradient is the same",
            ),
            (
                args.kl_penalty_coef != 0,
                "kl_penalty_coef is for KL in the reward, which oat's multi-turn learner ignores; use beta, KL in the loss",
            ),
            (
                args.reward_scale != 1.0,
                "oat's multi-turn learner ignores reward_scale; scale the rewards in the environment, or use 'rebn', which does "
                "not depend on their scale",
            ),
            (
                args.temperature != 1.0 and args.tis_c is not None,
                f"vLLM's V1 engine gives logprobs before temperature={args.temperature}, so oat would correct for a difference "
                "between sampler and learner that does not exist; set tis_c=None",
            ),
            (
                args.ignore_no_eos
                or args.non_stop_penalty != 0
                or args.non_stop_fixed_reward is not None,
                "oat's multi-turn actor ignores ignore_no_eos, non_stop_penalty and non_stop_fixed_reward; use "
                "GemConfig(on_cut='mask') to mask a turn that was cut",
            ),
        ]
    )


@lru_cache(maxsize=2)
def _shuffled(seeds: tuple[int, ...], order: str) -> list[int]:
    shuffled = list(seeds)
    random.Random(order).shuffle(shuffled)
    return shuffled
