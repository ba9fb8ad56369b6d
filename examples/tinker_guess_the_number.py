"""Train a model on GuessTheNumber with Tinker and per-turn advantages.

    python examples/tinker_guess_the_number.py                         # tiny model, CPU, minutes
    python examples/tinker_guess_the_number.py --one-step-off --loss ppo
    python examples/tinker_guess_the_number.py --model Qwen/Qwen3-4B-Instruct-2507

The tiny model runs on gem's own local server of the Tinker API, without an account. The last
command trains on Tinker's service, which costs money and needs TINKER_API_KEY. Writes
metrics.jsonl, episodes.jsonl and checkpoint.json to --out; a second run with more updates resumes.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import tyro

from gem_tinker import GemConfig, TinkerSettings, train


@dataclass
class Args:
    model: str = "tiny"
    """base model of the service, or `tiny` (ships with gem)"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator: any that needs no critic"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on"""
    updates: int = 40
    """number of updates, each on one batch of episodes"""
    episodes: int = 128
    """episodes per update"""
    samples: int = 1
    """episodes per seed; grpo and rloo need 2 or more"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, 4e-5 for others"""
    loss: Literal["importance_sampling", "ppo", "cispo"] = "importance_sampling"
    """Tinker's loss"""
    substeps: int = 1
    """optimizer steps per update"""
    rank: int = 32
    """rank of the LoRA matrices"""
    one_step_off: bool = False
    """play the next batch during an update, with the weights before it"""
    seed: int = 0
    """seed of sampling and of the order of the seeds"""
    out: str = "runs/tinker_guess_the_number"
    """output folder"""
    save_every: int = 10
    """updates between two checkpoints"""
    eval_seeds: int = 0
    """number of seeds to evaluate on, which are not trained on; 0: no evaluation"""
    eval_every: int = 10
    """updates between two evaluations"""


def main(args: Args) -> None:
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        eval_seeds=args.eval_seeds,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes.jsonl",
        metrics=f"{args.out}/metrics.jsonl",
    )
    settings = TinkerSettings(
        args.model,
        out=args.out,
        updates=args.updates,
        batch_size=args.episodes // args.samples,
        samples=args.samples,
        learning_rate=args.learning_rate or (2e-3 if args.model == "tiny" else 4e-5),
        loss=args.loss,
        substeps=args.substeps,
        rank=args.rank,
        one_step_off=args.one_step_off,
        save_every=args.save_every,
        eval_every=args.eval_every if args.eval_seeds else 0,
        seed=args.seed,
    )
    with ExitStack() as stack:
        if args.model == "tiny":
            from gem_tinker.local_server import LocalServer

            server = stack.enter_context(LocalServer("tiny", f"{args.out}/server"))
            settings.base_url = server.url
            os.environ.setdefault("TINKER_API_KEY", "tml-local")  # it accepts any
        train(config, settings)
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
