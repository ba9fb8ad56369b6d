"""Config: what an oat user says about an environment, and what oat settings go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gem_core.adapter_kit.declaration import require
from gem_core.errors import ConfigError
from gem_core.training.advantage import advantages, estimators
from gem_core.training.config import TrainingConfig
from gem_core.training.horizon import HorizonSchedule
from gem_core.training.moments import Gather
from gem_core.types import Episode
from gem_oat import ADAPTER

__all__ = ["GemConfig", "check_args", "learners"]


@dataclass
class GemConfig(TrainingConfig):
    """An environment for oat: `PPOArgs(..., **spec.arguments())`, then `spec.program(args)` for launchpad.

    Actors play without end: an episode that is not finished when a batch is full goes on in the next one.
    """

    adapter = ADAPTER

    samples: int = 1
    """Episodes from each start: the group of `grpo` and `rloo`. They enter a batch together."""
    concurrency: int = 32
    """Episodes in play at once, for each actor. More fill the GPU; fewer leave less to carry over, sampled from older weights."""
    batch_wait: float = 0.05
    """Seconds a generation batch waits for episodes whose environment is still busy."""
    metrics: str | None = None
    """Where the first learner appends what it logs after each update, as JSON lines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("samples", "concurrency"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{name} must be a whole number from 1 up; given: {number!r}")
        if "groups" in estimators.get(self.advantage).needs and self.samples < 2:
            raise ConfigError(f"the estimator {self.advantage!r} compares episodes from one start; set samples to 2 or more")
        if "values" in self.estimator_kwargs:
            raise ConfigError("the values of an estimator are those of oat's critic; leave them out of estimator_kwargs")
        if self.episode_deadline is not None:
            raise ConfigError(
                "episode_deadline would also count the seconds oat trains while episodes wait to go on; use step_deadline for "
                "slow environments and horizon for long episodes"
            )
        if not self.train_seeds:
            raise ConfigError("there is no start to train on; give seeds, a number of them or a list")

    @property
    def with_critic(self) -> bool:
        """Whether the estimator asks for values, so that oat has to train a critic."""
        return "values" in estimators.get(self.advantage).needs

    @property
    def lam(self) -> float:
        """GAE's λ: the estimator's, and that of the critic's targets."""
        return float(self.estimator_kwargs.get("lam", 0.95))

    def arguments(self) -> dict[str, Any]:
        """What follows for oat, as keyword arguments of `PPOArgs`. What is not here is yours to set."""
        found = {
            "algo": "PPO",
            "oracle": "",
            "prompt_data": "",
            "critic_type": "ppo" if self.with_critic else "drgrpo",
            "gamma": self.gamma,
            "lam": self.lam,
            "num_samples": 1,  # groups are made of episodes, not of answers to one prompt
            "num_gpus_per_actor": 1,
            "train_batch_size_per_device": 1,
            "buffer_clear_every": 1,
            "pi_buffer_maxlen_per_device": 1_000_000,  # a shorter buffer drops transitions without a word
            "whiten_adv": False,
        }
        if self.max_turn_tokens is not None:
            found["generate_max_length"] = self.max_turn_tokens
        if not self.held_out_seeds:
            found["eval_steps"] = -1
        return found

    def program(self, args: Any) -> tuple[Any, Any]:
        """oat's own launchpad program with gem's actor and learner: (program, local_resources), as `lp.launch` takes them."""
        from oat.args import default_args_validation
        from oat.interface import get_program

        from gem_oat.advantage import GemLearner
        from gem_oat.rollout import GemActor

        check_args(args, self)
        args.gem = self  # oat carries its arguments to every actor and learner
        program, resources = get_program(default_args_validation(args), GemLearner, GemActor)
        return program, resources

    def credit(
        self, episodes: Sequence[Episode], gather: Gather | None = None, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """One number per turn, by the spec's estimator, with statistics over all ranks and a critic's values where it asks."""
        asked = {"values": values} if self.with_critic else {}
        return advantages(episodes, self.advantage, gamma=self.gamma, gather=gather, **asked, **self.estimator_kwargs)


def learners(args: Any) -> int:
    """How many learners, and so how many actors, oat makes of these arguments."""
    here = args.gpus if args.collocate else args.gpus - args.gpus // 2
    return int(here * args.num_groups)


def check_args(args: Any, given: GemConfig) -> None:
    """Refuses settings that would break what gem promises, with the remedy."""
    require(ADAPTER)
    for name, value in given.arguments().items():
        if getattr(args, name) != value:
            raise ConfigError(
                f"{name}={getattr(args, name)!r} does not go with this GemConfig, which needs {name}={value!r}; build the "
                "arguments as PPOArgs(..., **spec.arguments()), and say what you want in the spec"
            )
    ranks, size = learners(args), args.rollout_batch_size_per_device
    longest = max(given.horizon.rounds) if isinstance(given.horizon, HorizonSchedule) else 1
    refusals = [
        (
            args.rollout_batch_size != ranks * size,
            f"rollout_batch_size={args.rollout_batch_size} is not {ranks} learner(s) times rollout_batch_size_per_device={size}, "
            "so that an update would consist of several collections, each with statistics of its own; make them agree",
        ),
        (
            args.rollout_batch_size % args.train_batch_size != 0,
            f"train_batch_size={args.train_batch_size} does not divide rollout_batch_size={args.rollout_batch_size}, so that "
            "gradients would be left over for the next batch; make it a divisor, or equal to it for one update per batch",
        ),
        (
            args.train_batch_size % ranks != 0,
            f"train_batch_size={args.train_batch_size} is no multiple of the {ranks} learner(s); make it one",
        ),
        (
            args.max_train < args.rollout_batch_size,
            f"max_train={args.max_train} transitions are less than one batch of {args.rollout_batch_size}; it is how many are "
            "trained on altogether: batch size times updates",
        ),
        (
            given.samples * longest > size,
            f"{given.samples} episode(s) of {longest} turns from one start do not fit into rollout_batch_size_per_device={size}; "
            "raise it",
        ),
        (
            len(given.train_seeds) < ranks,
            f"{len(given.train_seeds)} start(s) cannot be dealt out to {ranks} actors; give more seeds",
        ),
        (
            args.reinforce_update,
            "reinforce_update=True ends in a division by zero in oat's multi-turn learner; leave it out: with "
            "num_ppo_epochs=1 and one update per batch the gradient is the same",
        ),
        (
            args.kl_penalty_coef != 0,
            "kl_penalty_coef is for KL in the reward, which oat's multi-turn learner ignores; use beta, KL in the loss",
        ),
        (
            args.reward_scale != 1.0,
            "reward_scale is ignored by oat's multi-turn learner; scale the rewards in the environment, or choose 'rebn', "
            "which does not depend on their scale",
        ),
        (
            args.temperature != 1.0 and args.tis_c is not None,
            f"vLLM's V1 engine gives logprobs before temperature={args.temperature}, so that oat would correct for a difference "
            "between sampler and learner that is not there; set tis_c=None",
        ),
        (
            args.ignore_no_eos or args.non_stop_penalty != 0 or args.non_stop_fixed_reward is not None,
            "ignore_no_eos, non_stop_penalty and non_stop_fixed_reward are ignored by oat's multi-turn actor; "
            "GemConfig(on_cut='mask') leaves a turn that was cut untrained",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise ConfigError(why)
