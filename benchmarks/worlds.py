"""Steps per CPU second of the worlds, with 64 episodes at once and the random player.

    python benchmarks/worlds.py

CPU seconds of this process, so that other load on the machine does not count. Data that all
episodes share, such as a catalogue, are built before.
"""

from __future__ import annotations

import time

from gem_core import make, run_batch, tasks_for
from gem_core.policies.players import RandomPlayer

IDS = (
    "maze:Random-v0",
    "household:Any-v0",
    "sql:Query-v0",
    "tool:Weather-v0",
    "tool:Movie-v0",
    "tool:Academia-v0",
    "tool:Sheet-v0",
    "tool:Todo-v0",
    "webshop:WebShop-v0",
    "wiki:WikiGame-v0",
    "search:MultiHop-v0",
)
EPISODES = 64


def main() -> None:
    """Print a Markdown table."""
    print("| Id | Steps | Steps per CPU second |\n|---|---|---|")
    for id in IDS:
        make(id).close()
        began = time.process_time()
        episodes = run_batch(tasks_for(id, range(EPISODES)), RandomPlayer(), concurrency=EPISODES)
        seconds = time.process_time() - began
        steps = sum(len(episode.turns) for episode in episodes)
        print(f"| `{id}` | {steps:,} | {steps / seconds:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
