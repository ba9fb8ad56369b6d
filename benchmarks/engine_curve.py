"""Train GuessTheNumber with the plain engine and the settings of the GPU recipes.

    python benchmarks/engine_curve.py FOLDER --seed 0 --out runs/engine0

FOLDER is the model. Each update plays the same seeds, as the recipes do. Writes metrics.jsonl and
episodes.jsonl to --out at the end, and the seconds of each stage to stages.json.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from algorithms_model import load
from algorithms_plan import GUESS, Run
from algorithms_training import Clock, Trainer, exclude_from_gc

from gem_core import ConfigError, Episode, GemError
from gem_core.adapter_kit.record_log import RecordLog


@dataclass
class Args:
    model: tyro.conf.Positional[str]
    """model folder, `tiny` or `smollm2`"""
    seed: int = 0
    """seed of sampling"""
    seeds: int = 128
    """number of seeds, which are the same in every update"""
    episodes: int = 256
    """episodes per update; a multiple of `seeds`"""
    updates: int = 25
    """number of updates"""
    learning_rate: float = 3e-5
    """learning rate"""
    out: Path = Path("runs/engine_curve")
    """output folder"""


class SameTasks(Trainer):
    """The engine of the studies, with the same tasks in every update."""

    def __init__(self, *args: Any, seeds: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seeds = range(seeds)
        self.trained: list[tuple[list[Episode], list[list[float]]]] = []
        """The episodes of each update, with the advantage of each turn."""
        self.rollouts: list[float] = []
        """The seconds of each rollout."""
        self.outside: list[float] = []
        """Of these, the seconds without sampling: tasks, environments, rendering, tokenizer."""

    async def play_batch(
        self, run: Run, rng: random.Random, turns: int | None, clock: Clock
    ) -> list[Episode]:
        began, samples = time.monotonic(), run.episodes // len(self.seeds)
        before = clock.environment
        batch = await self.play(run.setting, self.seeds, samples, turns, clock)
        self.rollouts.append(round(time.monotonic() - began, 4))
        self.outside.append(round(clock.environment - before, 4))
        return batch

    def update(self, batch: list[Episode], per_turn: list[list[float]], *rest: Any) -> Any:
        self.trained.append((batch, per_turn))
        result = super().update(batch, per_turn, *rest)
        exclude_from_gc()
        return result


def main(args: Args) -> None:
    if args.seeds < 1 or args.episodes % args.seeds:
        raise ConfigError(
            f"--episodes must be a multiple of --seeds; got {args.episodes} and {args.seeds}"
        )
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    # graphs keep the memory of their activations, so the micro-batches are small
    trainer = SameTasks(model, tokenizer, args.out, slots=256, room=20480, seeds=args.seeds)
    run = Run(
        "curve",
        replace(GUESS, tokens=24),  # the token cap of a turn in the recipes
        "rebn",
        seed=args.seed,
        updates=args.updates,
        episodes=args.episodes,
        rate=args.learning_rate,
    )
    curve = trainer.train(run)["curve"]
    args.out.mkdir(parents=True, exist_ok=True)
    with closing(RecordLog(str(args.out / "episodes.jsonl"))) as records:
        for step, (episodes, per_turn) in enumerate(trainer.trained):
            records.trained(episodes, per_turn, step)
    with (args.out / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(args.updates):
            names = ("success", "return", "turns", "tokens", "seconds", "grad_norm")
            numbers = {name: curve[name][step] for name in names}
            file.write(json.dumps({"step": step, "episodes": run.episodes, **numbers}) + "\n")
    updates = [round(s - r, 4) for s, r in zip(curve["seconds"], trainer.rollouts)]
    stages = {
        "rollout": trainer.rollouts,
        "of these, not sampling": trainer.outside,
        "update": updates,
    }
    (args.out / "stages.json").write_text(json.dumps(stages) + "\n", encoding="utf-8")
    print(f"success of the last update: {curve['success'][-1]:.1%}; see {args.out}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
