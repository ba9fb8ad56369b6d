"""Config: the environment to train on with oat, and the check of oat's own settings."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.adapter_kit.settings import few_samples, fixed, reject
from gem_core.arguments import whole_number
from gem_core.env.registry import spec as env_spec
from gem_core.training.config import TrainingConfig
from gem_core.types import Task
from gem_oat import ADAPTER

__all__ = ["GemConfig", "check_settings", "learners", "longest_episode", "ppo_kwargs"]


@dataclass
class GemConfig(TrainingConfig):
    """Training configuration for oat: the environment, its limits and the advantage estimator.

    Actors play continuously: an episode that is unfinished when a batch is full continues in the
    next batch.
    """

    adapter = ADAPTER

    samples: int = 1
    """Episodes per seed: the group of `grpo` and `rloo`. A group enters a batch as a whole."""
    concurrency: int = 32
    """Concurrent episodes per actor. More fill the GPU, but more turns come from older weights."""
    batch_wait: float = 0.05
    """Seconds that a generation batch waits for episodes whose environment is still busy."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of `vllm.LLM` that oat has no settings for, such as `{"enforce_eager": True}`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("samples", self.samples, 1)
        whole_number("concurrency", self.concurrency, 1)
        reject(
            [
                few_samples(self, self.samples, "samples"),
                (
                    self.episode_deadline is not None,
                    "episode_deadline would also count the seconds in which oat trains and "
                    "episodes wait; use step_deadline for slow environments, and horizon for long "
                    "episodes",
                ),
            ]
        )

    @property
    def lam(self) -> float:
        """GAE's λ, for the advantages and for the critic's targets."""
        return float(self.estimator_kwargs.get("lam", 0.95))

    def task_of(self, index: int, actor: int = 0, actors: int = 1, order: int = 0) -> Task:
        """Return the task of an actor's episode number `index`; oat passes no prompts.

        Actors share the seeds and play each of them `samples` times, in a new order in every epoch.
        `order` is the seed of these orders.
        """
        share = len(range(actor, len(self._orders.seeds), actors)) * self.samples
        epoch, place = divmod(index, share)
        # the same order on every actor: shares do not overlap
        seeds = self._orders.of(order, epoch)
        return self.task(seeds[actor + actors * (place // self.samples)], index)

    @cached_property
    def _orders(self) -> _Orders:
        return _Orders(self.train_seeds)


class _Orders:
    """The training seeds in the order of an epoch; its tasks share one shuffled list."""

    def __init__(self, seeds: list[int]) -> None:
        self.seeds = seeds
        self._epoch: tuple[int, int] | None = None
        self._shuffled: list[int] = []

    def of(self, order: int, epoch: int) -> list[int]:
        """Return the seeds in the order of an epoch; `order` is the seed of all orders."""
        if self._epoch != (order, epoch):
            self._epoch, self._shuffled = (order, epoch), list(self.seeds)
            random.Random(f"{order} {epoch}").shuffle(self._shuffled)
        return self._shuffled


def ppo_kwargs(config: GemConfig) -> dict[str, Any]:
    """Return the keyword arguments of `PPOArgs` that follow from the config. Set all others."""
    settings = {
        "algo": "PPO",
        "oracle": "",
        "prompt_data": "",
        "critic_type": "ppo" if config.needs_values else "drgrpo",
        "gamma": config.gamma,
        "lam": config.lam,
        "num_samples": 1,  # groups consist of episodes, not of completions of one prompt
        "num_gpus_per_actor": 1,
        "train_batch_size_per_device": 1,
        "buffer_clear_every": 1,
        "pi_buffer_maxlen_per_device": 1_000_000,  # a shorter buffer silently drops transitions
        "whiten_adv": False,
    }
    if config.max_turn_tokens is not None:
        settings["generate_max_length"] = config.max_turn_tokens
        settings["eval_generate_max_length"] = config.max_turn_tokens
    if not config.held_out_seeds:
        settings["eval_steps"] = -1
    return settings


def learners(args: Any) -> int:
    """Return the number of learners that oat starts with these arguments, and of actors."""
    per_group = args.gpus if args.collocate else args.gpus - args.gpus // 2
    return int(per_group * args.num_groups)


def longest_episode(config: GemConfig) -> int | None:
    """Return the maximum number of turns of a training episode; None if there is no limit."""
    limits = [max(config.schedule.rounds)] if config.schedule is not None else []
    own = config.env_kwargs.get("max_turns", env_spec(config.env_id).turns)
    limits += [own] if isinstance(own, int) else []
    return min(limits, default=None)


_WITHOUT_EFFECT = {
    "apply_chat_template": "gem always applies it; remove it, and use GemConfig(template_kwargs=)",
    "eval_n": "gem plays one episode per held-out seed; set more of them: GemConfig(eval_seeds=)",
    "max_epochs": "oat's PPO learner makes one pass; set num_ppo_epochs, and max_step_adjustment "
    "for the length of the learning rate's schedule",
    "max_eval": "gem plays every held-out seed; set GemConfig(eval_seeds=)",
    "max_sgd_steps": "gem's updates end with their batch; set max_train",
    "num_prompt_epoch": "gem draws seeds until max_train is reached; set max_train",
    "remote_rm_url": "the rewards are the environment's; remove it",
    "sync_params_every": "gem counts one weight version per update; remove it",
    "whiten_rewards": "oat's multi-turn learner ignores it; remove it, and use 'rebn'",
}
"""What to do instead, by oat's name. The defaults are those of `PPOArgs`."""


def check_settings(settings: Any, config: GemConfig) -> None:
    """Raise one `ConfigError` that lists every oat setting gem does not support.

    `settings`: oat's `PPOArgs`.
    """
    require(ADAPTER)
    args = settings
    ranks, size, total = learners(args), args.rollout_batch_size_per_device, args.rollout_batch_size
    longest = longest_episode(config) or 1
    reject(
        [
            *(
                (
                    getattr(args, name) != value,
                    f"{name}={getattr(args, name)!r}, but this GemConfig needs {name}={value!r}; "
                    "build the arguments with PPOArgs(..., **ppo_kwargs(config)), and change the "
                    "GemConfig instead",
                )
                for name, value in ppo_kwargs(config).items()
            ),
            (
                total != ranks * size,
                f"rollout_batch_size={total} is not {ranks} learner(s) times "
                f"rollout_batch_size_per_device={size}, so an update would consist of several "
                f"collections, each with its own statistics; set it to {ranks * size}",
            ),
            (
                args.train_batch_size < 1 or total % args.train_batch_size != 0,
                f"train_batch_size={args.train_batch_size} does not divide "
                f"rollout_batch_size={total}, so gradients would carry over to the next batch; "
                "set it to a divisor, or to the same number for one update per batch",
            ),
            (
                args.train_batch_size % ranks != 0,
                f"train_batch_size={args.train_batch_size} is not a multiple of the {ranks} "
                "learner(s); set it to a multiple",
            ),
            (
                args.max_train < total,
                f"max_train={args.max_train} transitions are less than one batch of {total}; set "
                "it to the batch size times the number of updates",
            ),
            (
                config.samples * longest > size,
                f"{config.samples} episode(s) of {longest} turns from one seed do not fit into "
                f"rollout_batch_size_per_device={size}; raise it, or set GemConfig(horizon=...)",
            ),
            *fixed(args, type(args), _WITHOUT_EFFECT),
            (
                args.asynchronous,
                "asynchronous=True has no effect: oat's multi-turn learner replaces the "
                "asynchronous collector; set it to False",
            ),
            (
                args.lora_rank > 0 and args.lora_sync_only,
                "lora_sync_only=True numbers the adapters for vLLM by a hash of their path, which "
                "is negative for half of them, and vLLM raises for negative numbers; remove it, "
                "and oat sends the merged weights",
            ),
            (
                args.lora_rank > 0 and config.needs_values,
                f"lora_rank={args.lora_rank} also applies to oat's critic, whose forward pass does "
                "not accept adapters; set it to 0, or use an estimator without a critic",
            ),
            (
                bool(args.resume_dir) and not Path(args.resume_dir).is_dir(),
                f"resume_dir={args.resume_dir!r} is not a folder; set it to the folder "
                "'checkpoints' of a run with save_ckpt=True and save_steps",
            ),
            (
                len(config.train_seeds) < ranks,
                f"{len(config.train_seeds)} seed(s) are too few for {ranks} actors, which share "
                "them; set more seeds",
            ),
            (
                args.reinforce_update,
                "reinforce_update=True divides by zero in oat's multi-turn learner; remove it: "
                "with num_ppo_epochs=1 and one update per batch the gradient is the same",
            ),
            (
                args.kl_penalty_coef != 0,
                "oat's multi-turn learner ignores kl_penalty_coef, KL in the reward; use beta, KL "
                "in the loss",
            ),
            (
                args.reward_scale != 1.0,
                "oat's multi-turn learner ignores reward_scale; scale the rewards in the "
                "environment, or use 'rebn', which does not depend on their scale",
            ),
            (
                args.temperature != 1.0 and args.tis_c is not None,
                "vLLM's V1 engine returns logprobs from before the "
                f"temperature={args.temperature} is applied, so oat would correct a difference "
                "between sampler and learner that does not exist; set tis_c=None",
            ),
            (
                args.ignore_no_eos
                or args.non_stop_penalty != 0
                or args.non_stop_fixed_reward is not None,
                "oat's multi-turn actor ignores ignore_no_eos, non_stop_penalty and "
                "non_stop_fixed_reward; use GemConfig(on_cut='mask') to mask a cut turn",
            ),
        ]
    )
