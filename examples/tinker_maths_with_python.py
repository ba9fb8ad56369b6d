"""Train a model to call Python for sums, with Tinker and per-turn advantages.

    python examples/tinker_maths_with_python.py                        # tiny model, CPU, minutes
    python examples/tinker_maths_with_python.py --model Qwen/Qwen3-4B-Instruct-2507 --env math:GSM8K

A tool call is an ordinary turn: the model samples and trains it, and the result arrives with the
role `tool`. The tiny model has never seen a tool, so an SFT warm-up shows it a student who always
calls Python, then one who guesses three of five sums. Training has to unlearn the guessing. The
tiny model runs on a local server of gem; the last command needs TINKER_API_KEY.
"""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import tyro

from gem_core import Env
from gem_tinker import GemConfig, TinkerSettings, train


@dataclass
class Args:
    model: str = "tiny"
    """base model of the service, or `tiny` (ships with gem)"""
    env: str = ""
    """maths environment; default: sums of two numbers, which are written to --out"""
    advantage: str = "rebn"
    """advantage estimator: any that needs no critic"""
    updates: int = 20
    """number of updates, each on one batch of episodes"""
    episodes: int = 64
    """episodes per update"""
    max_turn_tokens: int = 32
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 1e-3 for the tiny model, 4e-5 for others"""
    rank: int = 32
    """rank of the LoRA matrices"""
    seed: int = 0
    """seed of sampling, of the order of the seeds, and of the sums"""
    out: str = "runs/tinker_maths_with_python"
    """output folder; a second run with more updates resumes"""
    tools: str = "python(max_uses=2)"
    """tools that the model may call; empty: none"""
    warm_up: int = 600
    """updates of SFT on the students, for the tiny model on the default sums with tools; 0: none"""
    warm_up_episodes: int = 800
    """episodes that each of the two students plays for the SFT"""


class Student:
    """Baseline player: calls Python for a share of the sums, and guesses the others."""

    def __init__(self, calls: float) -> None:
        self.calls, self.rng = calls, random.Random(0)

    def act(self, env: Env, observation: str) -> str:
        question = re.search(r"What is (\d+ \+ \d+)\?", observation)
        if question is None:  # the result of the tool
            return f"\\boxed{{{observation.strip()}}}"
        if self.rng.random() < self.calls:
            return f"<python>print({question[1]})</python>"
        return f"\\boxed{{{self.rng.randint(2, 98)}}}"


def main(args: Args) -> None:
    tiny, out, rng = args.model == "tiny", Path(args.out), random.Random(args.seed)
    warm = tiny and args.tools and not args.env and args.warm_up
    out.mkdir(parents=True, exist_ok=True)
    sums = [(rng.randint(1, 49), rng.randint(1, 49)) for _ in range(4096)]  # up to 98: one token
    rows = [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in sums]
    (out / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = GemConfig(
        args.env or "math:Sample-v0",
        env_kwargs={} if args.env else {"dataset": str(out / "problems.jsonl")},
        seeds=4096,
        tools=args.tools,
        advantage=args.advantage,
        max_turn_tokens=args.max_turn_tokens,
        record=str(out / "episodes.jsonl"),
        metrics=str(out / "metrics.jsonl"),
    )
    settings = TinkerSettings(
        str(out / "warm") if warm else args.model,
        out=args.out,
        updates=args.updates,
        batch_size=args.episodes,
        learning_rate=args.learning_rate or (1e-3 if tiny else 4e-5),
        rank=args.rank,
        seed=args.seed,
    )
    with ExitStack() as stack:
        if tiny:
            from gem_tinker.local_server import LocalServer

            if warm and not (out / "warm").exists():
                warm_up(args, config, out / "warm")
            settings.base_url = stack.enter_context(LocalServer(settings.model, out / "server")).url
            os.environ.setdefault("TINKER_API_KEY", "tml-local")  # it accepts any
        train(config, settings)
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


def warm_up(args: Args, config: GemConfig, folder: Path) -> None:
    """Teach the tiny model the tool, and save it as the base model of the local server."""
    from gem_core.policies.tiny import load_tiny
    from gem_core.training.warm_up import warm_up

    model, tokenizer = load_tiny()
    env = {"wrappers": args.tools, "env_kwargs": config.env_kwargs}
    sft = {"episodes": args.warm_up_episodes, "batch_size": 16, "learning_rate": 2e-3}
    for calls, updates in ((1.0, args.warm_up * 3 // 4), (0.4, args.warm_up // 4)):
        how = {"updates": updates, "player": Student(calls), **env, **sft}
        loss = warm_up(model, tokenizer, config.env_id, **how)
        print(f"SFT warm-up: {updates} updates, loss {loss:.3f}", flush=True)
    new = folder.with_suffix(".new")  # a killed run leaves no incomplete model in `folder`
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    new.rename(folder)


if __name__ == "__main__":
    main(tyro.cli(Args))
