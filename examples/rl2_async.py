"""Train on an environment with slow steps, with RL2: an episode does not wait for the others.

    torchrun --nproc_per_node=1 examples/rl2_async.py --slow 0.2 --slow-seconds 5

A wrapper sleeps in some steps, like a slow tool or remote service. At the end the script compares
the total sleep with the training time: in lockstep, every turn would take as long as its slowest
step. Writes metrics.jsonl, episodes.jsonl and the model to --out.
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
    """Wrapper that sleeps in random steps; the episode's seed determines which."""

    def __init__(self, env: Env, slow: float = 0.1, seconds: float = 2.0) -> None:
        super().__init__(env)
        self.slow, self.seconds = slow, seconds

    def on_step(self, action: str) -> Any:
        if self.rng.random() < self.slow:
            yield asyncio.sleep(self.seconds)  # the engine awaits it: other episodes continue
            slept.append(self.seconds)
        return (yield self.env.step(action))


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator: any that needs no critic and no groups"""
    gamma: float = 0.9
    """discount per turn"""
    updates: int = 10
    """number of updates, each on one batch of episodes"""
    episodes: int = 64
    """episodes per update"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    out: str = "runs/rl2_async"
    """output folder; a second run appends to its metrics and episodes"""
    max_length: int = 16384
    """token cap of a sequence, and of one forward pass on a GPU"""
    slow: float = 0.1
    """share of steps that sleep"""
    slow_seconds: float = 2.0
    """seconds that such a step sleeps"""


def main(args: Args) -> None:
    register_wrapper("uneven", Uneven)
    default = 2e-3 if args.model == "tiny" else 3e-5
    rate = default if args.learning_rate is None else args.learning_rate
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
        f"actor.lr={rate}",
        f"train_data.prompts_per_rollout={args.episodes}",
        f"trainer.save_dir={args.out}/model",
        "trainer.experiment_name=async",
        "trainer.use_wandb=false",
    ]
    started = time.monotonic()
    train(config, settings)
    seconds = time.monotonic() - started
    print(f"steps slept {sum(slept):.1f} s in total; the training took {seconds:.1f} s")
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
