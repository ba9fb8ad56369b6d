"""Steps per CPU second of the worlds, with 64 episodes at once and the random player.

    python benchmarks/worlds.py

CPU seconds of this process and the processes below it, such as Chromium's, so that other load on
the machine does not count. Data that all episodes share, such as a catalogue, are built before, and
Chromium is started before. Linux only.
"""

from __future__ import annotations

import os
from pathlib import Path

from gem_core import run_batch, tasks_for
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
    "web:Any-v0",
    "web:Several-v0",
    "miniwob:click-checkboxes",
    "miniwob:phone-book",
)
EPISODES = 64


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all processes below it."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it has ended
            continue
        number = int(stat.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))  # user and system, also of ended children
    below = {os.getpid()}
    while more := {n for n, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(number, 0) for number in below) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print a Markdown table."""
    print("| Id | Steps | Steps per CPU second |\n|---|---|---|")
    for id in IDS:
        run_batch(tasks_for(id, [EPISODES]), RandomPlayer())
        began = cpu_seconds()
        episodes = run_batch(tasks_for(id, range(EPISODES)), RandomPlayer(), concurrency=EPISODES)
        seconds = cpu_seconds() - began
        if failures := [episode.failure for episode in episodes if episode.failed]:
            raise SystemExit(f"{len(failures)} episodes of {id} failed, the first: {failures[0]}")
        steps = sum(len(episode.turns) for episode in episodes)
        print(f"| `{id}` | {steps:,} | {steps / seconds:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
