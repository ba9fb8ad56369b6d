"""Environments in which it is known which turn earns which reward, for the study of credit.

    python benchmarks/credit.py     # how well each estimator tells right from wrong choices

Every turn asks for one of two doors, and the right one depends only on the turn. Each turn also
pays or takes a coin by chance (`noise`), whatever the choice:

- `PayNow`: every right door pays 1 at once.
- `PayLate`: only the first door matters. If it is right, it pays 3 after the last turn.
- `PayLast`: only the last door matters. If it is right, it pays 1 at once.

The estimator `episode` gives every turn the return of its episode, normalised over the batch, as
trainers without turn-level rewards do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean, pstdev
from typing import Any

from gem_core import Env, Episode, Rollout, advantages, register, tasks_for
from gem_core.policies.players import RandomPlayer
from gem_core.training.advantage import register_estimator

__all__ = [
    "ENVIRONMENTS",
    "ESTIMATES",
    "PayLast",
    "PayLate",
    "PayNow",
    "critic_loss",
    "exact_values",
    "separation",
    "separation_table",
]

DOORS = ("red", "blue")
RIGHT = (0, 1, 1, 0, 1, 0)
"""The right door of each turn; both doors are right in half of the turns."""


class Doors(Env):
    """Choose a door in each of six turns."""

    execution = "inline"
    action_example = "red"
    max_turns = len(RIGHT)

    def __init__(self, noise: float = 1.0) -> None:
        self.noise = noise
        self.first_was_right = False

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self.first_was_right = False
        return f"There are {len(RIGHT)} rooms, each with a red and a blue door. {_ask(0)}", {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action.strip().lower() == DOORS[RIGHT[self.turn]]
        if self.turn == 0:
            self.first_was_right = right
        reward = self.pay(right) + self.noise * self.rng.choice((-1, 1))
        if self.turn + 1 == len(RIGHT):
            return "The end.", reward, True, False, {"success": self.succeeded(right)}
        return self.shown() + _ask(self.turn + 1), reward, False, False, {}

    def pay(self, right: bool) -> float:
        """Return what the turn earns, without noise."""
        raise NotImplementedError

    def succeeded(self, last_was_right: bool) -> bool:
        """Return whether the choices that matter were right."""
        raise NotImplementedError

    def shown(self) -> str:
        """Return what the agent has, if it depends on a choice."""
        return ""

    def sample_action(self) -> str:
        return self.action_rng.choice(DOORS)

    def expert(self) -> Any:
        while True:
            yield DOORS[RIGHT[self.turn]]


class PayNow(Doors):
    """Every right door pays 1 at once. Success means that all were right."""

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self.count = 0
        return super().on_reset(options)

    def pay(self, right: bool) -> float:
        self.count += right
        return float(right)

    def succeeded(self, last_was_right: bool) -> bool:
        return self.count == len(RIGHT)


class PayLate(Doors):
    """Only the first door matters, and pays 3 after the last turn."""

    def pay(self, right: bool) -> float:
        return 3.0 * (self.first_was_right and self.turn + 1 == len(RIGHT))

    def succeeded(self, last_was_right: bool) -> bool:
        return self.first_was_right

    def shown(self) -> str:
        return "You hold a key. " if self.first_was_right else "You hold nothing. "


class PayLast(Doors):
    """Only the last door matters, and pays 1 at once."""

    def pay(self, right: bool) -> float:
        return float(right and self.turn + 1 == len(RIGHT))

    def succeeded(self, last_was_right: bool) -> bool:
        return last_was_right


def _ask(turn: int) -> str:
    return f"This is room {turn + 1}. Which door do you open?"


ENVIRONMENTS = {"PayNow": PayNow, "PayLate": PayLate, "PayLast": PayLast}
for _name, _class in ENVIRONMENTS.items():
    register(
        f"credit:{_name}-v0",
        _class,
        wrappers=["boxed"],
        summary=(_class.__doc__ or "").partition(".")[0],
        turns=len(RIGHT),
        reward="noisy: chance pays or takes a coin in every turn",
    )


def episode_level(
    episodes: Sequence[Episode], *, gamma: float = 1.0, gather: Any = None
) -> list[list[float]]:
    """Give every turn the return of its episode, normalised over the batch."""
    returns = [sum(r * gamma**turn for turn, r in enumerate(e.rewards)) for e in episodes]
    mean, std = fmean(returns), pstdev(returns)
    return [[(own - mean) / (std + 1e-8)] * len(e.turns) for own, e in zip(returns, episodes)]


register_estimator("episode", episode_level)


@cache
def _random_episodes(env: str, count: int) -> list[Episode]:
    with Rollout(RandomPlayer(), concurrency=64) as rollout:
        return list(rollout.run_batch(tasks_for(f"credit:{env}-v0", range(count))))


CREDITED = {"PayNow": range(len(RIGHT)), "PayLate": [0], "PayLast": [len(RIGHT) - 1]}
"""The turns whose choice matters."""


def exact_values(env: str, episode: Episode) -> list[float]:
    """Return what a random player earns on average from each turn on, and 0 for the end."""
    if env == "PayNow":
        return [0.5 * (len(RIGHT) - turn) for turn in range(len(RIGHT) + 1)]
    if env == "PayLate":
        key = 3.0 * (DOORS[RIGHT[0]] in episode.turns[0].action)
        return [1.5, *[key] * (len(RIGHT) - 1), 0.0]
    return [*[0.5] * len(RIGHT), 0.0]


def ppo(
    env: str, episodes: Sequence[Episode], lam: float, exact: bool, whiten: bool = True
) -> list[list[float]]:
    """Return PPO's advantages with a critic that predicts the exact values, or 0."""
    values = [exact_values(env, e) if exact else [0.0] * (len(RIGHT) + 1) for e in episodes]
    return advantages(episodes, "gae", values=values, gamma=1.0, lam=lam, whiten=whiten)


def critic_loss(env: str, lam: float, exact: bool, count: int = 4000) -> float:
    """Return the loss of such a critic: its target is V + A, so the mean of the squared A."""
    per_turn = ppo(env, _random_episodes(env, count), lam, exact, whiten=False)
    return fmean(a * a for turns in per_turn for a in turns)


def separation(
    env: str, estimate: Callable[[str, Sequence[Episode]], list[list[float]]], count: int = 4000
) -> float:
    """Return how far apart the advantages of right and wrong choices are, in deviations.

    A random player chooses. A batch of N choices finds the right door if this is well above
    2 / sqrt(N). The mean over the turns whose choice matters.
    """
    episodes = _random_episodes(env, count)
    per_turn = estimate(env, episodes)
    gaps = []
    for turn in CREDITED[env]:
        by_choice: dict[bool, list[float]] = {True: [], False: []}
        for episode, own in zip(episodes, per_turn):
            right = DOORS[RIGHT[turn]] in episode.turns[turn].action
            by_choice[right].append(own[turn])
        spread = math.sqrt(fmean(pstdev(numbers) ** 2 for numbers in by_choice.values()))
        gaps.append((fmean(by_choice[True]) - fmean(by_choice[False])) / spread)
    return fmean(gaps)


ESTIMATES: dict[str, Callable[[str, Sequence[Episode]], list[list[float]]]] = {
    "episode, γ = 1": lambda _, e: advantages(e, "episode"),
    "ReBN, γ = 1": lambda _, e: advantages(e, "rebn", gamma=1.0),
    "ReBN, γ = 0.9": lambda _, e: advantages(e, "rebn", gamma=0.9),
    "ReBN, γ = 0.5": lambda _, e: advantages(e, "rebn", gamma=0.5),
    "PPO, λ = 0.5, critic of 0": lambda env, e: ppo(env, e, lam=0.5, exact=False),
    "PPO, λ = 0.5, exact critic": lambda env, e: ppo(env, e, lam=0.5, exact=True),
    "PPO, λ = 0.95, critic of 0": lambda env, e: ppo(env, e, lam=0.95, exact=False),
}


def separation_table() -> str:
    """Return a Markdown table of how well each estimator tells right from wrong choices."""
    lines = ["| | " + " | ".join(CREDITED) + " |", "|---" * (1 + len(CREDITED)) + "|"]
    for name, estimate in ESTIMATES.items():
        gaps = [separation(env, estimate) for env in CREDITED]
        lines.append(f"| {name} | " + " | ".join(f"{gap:.2f}" for gap in gaps) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(separation_table())
    zero, right = (critic_loss("PayLate", lam=0.5, exact=exact) for exact in (False, True))
    print(
        f"loss of PPO's critic in PayLate, λ = 0.5: {zero:.2f} if it predicts 0, {right:.2f} exact"
    )
