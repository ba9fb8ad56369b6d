"""Environment with tasks for 5, 10, 20 and 40 turns, for the study of horizons.

    python benchmarks/corridor.py     # what a random player earns and could learn, per horizon

A corridor has 2, 4, 8 or 16 rooms, each with a red and a blue door. The right door leads to the
next room, the wrong one to the room before. The right door depends only on the number of the room.
Leaving the last room ends the episode and pays 1; nothing else pays. Observations are short: 40
turns fit into 1,024 tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from credit import DOORS

from gem_core import Env, Episode, Limits, Rollout, advantages, register, tasks_for
from gem_core.policies.players import RandomPlayer

__all__ = ["HORIZONS", "ROOMS", "Corridor", "separation", "success_by_rooms"]

ENV = "horizon:Corridor-v0"
ROOMS = (2, 4, 8, 16)
"""Rooms of a corridor; each number is equally frequent."""
RIGHT = (0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1)
"""The right door of each room, without a rule that the first rooms would teach."""
HORIZONS = (5, 10, 20, 40)


class Corridor(Env):
    """Leave a corridor. Success means that the last room was left."""

    execution = "inline"
    action_example = "red"
    max_turns = 40

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self.rooms = self.rng.choice(ROOMS)
        self.room = 0
        return (
            f"There are {self.rooms} rooms, each with a red and a blue door. "
            "A wrong door leads back. This is room 1. Which door do you open?",
            {"rooms": self.rooms},
        )

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action.strip().lower() == DOORS[RIGHT[self.room]]
        self.room = self.room + 1 if right else max(0, self.room - 1)
        if self.room == self.rooms:
            return "You are outside.", 1.0, True, False, {"success": True}
        truncated = self.turn + 1 == self.max_turns
        return f"This is room {self.room + 1}.", 0.0, False, truncated, {"success": False}

    def sample_action(self) -> str:
        return self.action_rng.choice(DOORS)

    def expert(self) -> Any:
        while True:
            yield DOORS[RIGHT[self.room]]


register(
    ENV,
    Corridor,
    wrappers=["boxed"],
    summary="Leave a corridor of 2 to 16 rooms",
    turns=Corridor.max_turns,
    reward="sparse: 1 after the last room",
)


def success_by_rooms(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the success in corridors of each length; empty for episodes of other environments."""
    groups: dict[int, list[bool]] = {}
    for episode in episodes:
        if episode.env_id == ENV and episode.turns:
            text = episode.turns[0].messages[-1].content
            found = re.search(r"There are (\d+) rooms", text)
            assert found, f"the first observation has the number of rooms; got {text!r}"
            groups.setdefault(int(found[1]), []).append(bool(episode.success))
    return {str(rooms): fmean(groups[rooms]) for rooms in sorted(groups)}


def separation(turns: int, count: int = 4000) -> tuple[float, float]:
    """Return the success of a random player and the gap between right and wrong choices.

    The gap is the mean difference of their advantages (ReBN, γ = 1) in standard deviations, over
    all choices of the batch.
    """
    limits = Limits(max_turns=turns)
    with Rollout(RandomPlayer(), limits=limits, concurrency=64) as rollout:
        episodes = rollout.run_batch(tasks_for(ENV, range(count)))
    by_choice: dict[bool, list[float]] = {True: [], False: []}
    for episode, own in zip(episodes, advantages(episodes, "rebn", gamma=1.0)):
        room = 0
        for turn, advantage in zip(episode.turns, own):
            right = DOORS[RIGHT[room]] in turn.action
            by_choice[right].append(advantage)
            room = room + 1 if right else max(0, room - 1)
    spread = math.sqrt(fmean(pstdev(numbers) ** 2 for numbers in by_choice.values()))
    gap = (fmean(by_choice[True]) - fmean(by_choice[False])) / spread
    return fmean(bool(e.success) for e in episodes), gap


def main() -> None:
    print("| Turns | success of a random player | gap of right and wrong choices |")
    print("|---|---|---|")
    for turns in HORIZONS:
        success, gap = separation(turns)
        print(f"| {turns} | {success:.0%} | {gap:.2f} |")


if __name__ == "__main__":
    main()
