"""GuessTheNumber with uneven step times, and the time per update that they predict.

    python benchmarks/uneven.py     # seconds that three rollouts wait for the environment

A step sleeps for a log-normal time, as a tool or a remote service may take it. Seed and turn alone
determine the time. The environment is async: other episodes continue during the sleep.

Three rollouts feed a trainer with batches of N episodes:

- `sync`: N episodes are in flight. The update waits for all of them, and the next N wait for it.
- `one-off`: two batches are in flight. Batch k + 1 begins after update k - 1, while batch k is
  still played, so its weights are at most one update old.
- `stream`: N episodes are in flight at any time. The update takes the first N that finish.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gem_core import Rollout, register, tasks_for
from gem_core.policies.players import RandomPlayer
from gem_envs.games.guess_the_number import GuessTheNumber

__all__ = ["ENV", "ROLLOUTS", "UnevenGuessTheNumber", "predicted_seconds"]

ENV = "uneven:GuessTheNumber-v0"
ROLLOUTS = ("sync", "one-off", "stream")


class UnevenGuessTheNumber(GuessTheNumber):
    """Guess a number from 1 to 10 in four turns that sleep for a log-normal time."""

    def __init__(self, median: float = 0.05, sigma: float = 1.5, longest: float = 5.0) -> None:
        super().__init__()
        self.median, self.sigma, self.longest = median, sigma, longest

    def seconds(self, turn: int) -> float:
        """Return how long a turn sleeps."""
        noise = random.Random(f"{self.seed} {turn}").gauss(0.0, self.sigma)
        return min(self.longest, self.median * math.exp(noise))

    async def on_step(self, action: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(self.seconds(self.turn))
        return super().on_step(action)


register(
    ENV,
    UnevenGuessTheNumber,
    wrappers=["boxed"],
    summary="Guess a number; the steps take uneven time",
    turns=4,
    reward="terminal: 1 for the number",
)


def predicted_seconds(size: int, updates: int = 200) -> dict[str, float]:
    """Return the seconds per update of each rollout, if only the environment took time."""
    turns = _turns_of_random_player(size * updates)
    env = UnevenGuessTheNumber()
    times = []
    for seed, count in enumerate(turns):
        env.reset(seed=seed)
        times.append(sum(env.seconds(turn) for turn in range(count)))
    batches = [max(times[i : i + size]) for i in range(0, len(times), size)]
    ends = [0.0, 0.0]  # of the updates before the first batch
    for longest in batches:
        # the batch began when the update before the last one ended
        ends.append(max(ends[-1], ends[-2] + longest))
    return {
        "sync": fmean(batches),
        "one-off": ends[-1] / updates,
        "stream": _end_of_stream(times, size) / updates,
    }


def _turns_of_random_player(count: int) -> list[int]:
    with Rollout(RandomPlayer()) as rollout:
        episodes = rollout.run_batch(tasks_for("game:GuessTheNumber-v0-easy", range(count)))
    return [len(e.turns) for e in episodes]


def _end_of_stream(times: Sequence[float], size: int) -> float:
    """Return when the last episode ends, if `size` of them are always in flight."""
    ends = list(times[:size])
    heapq.heapify(ends)
    for seconds in times[size:]:
        heapq.heappushpop(ends, ends[0] + seconds)
    return max(ends)


def main() -> None:
    print("| Episodes per update | " + " | ".join(ROLLOUTS) + " |")
    print("|---" * (1 + len(ROLLOUTS)) + "|")
    for size in (32, 64, 128):
        seconds = predicted_seconds(size)
        print(f"| {size} | " + " | ".join(f"{seconds[name]:.2f} s" for name in ROLLOUTS) + " |")


if __name__ == "__main__":
    main()
