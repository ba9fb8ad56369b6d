"""Train on an environment whose steps take uneven time, with RL2: no episode waits for another one's slow step.

    torchrun --nproc_per_node=1 examples/rl2_async.py --slow 0.2 --slow-seconds 5

A wrapper sleeps in a share of the steps, as a tool or a remote service would. The last line compares how long steps slept in
total with how long the training took: in lock-step, every turn would take as long as its slowest step.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import tyro

from gem_core import Env, Wrapper
from gem_core.env.wrapper_stack import register_wrapper
from gem_core.policies.models import model_path
from gem_rl2 import GemConfig, train

slept: list[float] = []


class Uneven(Wrapper):
    """Sleeps in some steps, chosen by the episode's own generator, so an episode can be repeated."""

    def __init__(self, env: Env, slow: float = 0.1, seconds: float = 2.0) -> None:
        super().__init__(env)
        self.slow, self.seconds = slow, seconds

    def on_step(self, action: str) -> Any:
        if self.rng.random() < self.slow:
            yield asyncio.sleep(self.seconds)  # awaited by the engine: other episodes continue
            slept.append(self.seconds)
        return (yield self.env.step(action))


@dataclass
class Args:
    model: str = "tiny"
    """a model folder, a hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture"""
    advantage: str = "rebn"
    """the estimator: any registered one that needs no critic and no groups"""
    gamma: float = 0.9
    """the discount per turn"""
    updates: int = 10
    """the number of updates, each on one batch of episodes"""
    episodes: int = 64
    """episodes per update"""
    max_turn_tokens: int = 24
    """the cap on the tokens of one turn"""
    learning_rate: float = 2e-3
    """of AdamW; 2e-3 is for the tiny model, use 1e-6 for others"""
    out: str = "runs/rl2_async"
    """folder of the metrics, the episodes and the model; a second run into it appends to metrics and episodes"""
    max_length: int = 16384
    """tokens a GPU takes in one forward pass of the loss; no sequence may be longer"""
    slow: float = 0.1
    """the share of steps that sleep"""
    slow_seconds: float = 2.0
    """how long they sleep"""


def main(args: Args) -> None:
    register_wrapper("uneven", Uneven)
    config = GemConfig(
        args.env,
        seeds=args.episodes * args.updates,
        wrappers=[("uneven", {"slow": args.slow, "seconds": args.slow_seconds})],
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes.jsonl",
        metrics=f"{args.out}/metrics.jsonl",
    )
    settings = [
        f"actor.model_name={model_path(args.model)}",
        f"actor.max_length_per_device={args.max_length}",
        f"actor.lr={args.learning_rate}",
        f"train_data.prompts_per_rollout={args.episodes}",
        f"trainer.save_dir={args.out}/model",
        "trainer.experiment_name=async",
        "trainer.use_wandb=false",
    ]
    began = time.monotonic()
    train(config, settings)
    print(
        f"steps slept {sum(slept):.1f} s in total; the training took {time.monotonic() - began:.1f} s"
    )
    print(
        f"metrics: {args.out}/metrics.jsonl   (gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl)"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
