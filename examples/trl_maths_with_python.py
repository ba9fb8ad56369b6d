"""Train a model to call Python for sums, with TRL's GRPOTrainer and per-turn advantages.

    python examples/trl_maths_with_python.py                           # tiny model, CPU, minutes
    python examples/trl_maths_with_python.py --model smollm2 --vllm --env math:GSM8K    # one GPU

A tool call is an ordinary turn: the model samples and trains it, and the result arrives with the
role `tool`. The tiny model has never seen a tool, so an SFT warm-up shows it a student who always
calls Python, then one who guesses three of five sums. Training has to unlearn the guessing. Writes
metrics.jsonl, episodes.jsonl and problems.jsonl to --out.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from trl import GRPOConfig

from gem_core import Env
from gem_core.policies.models import load_model
from gem_core.training.warm_up import warm_up
from gem_trl import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = ""
    """maths environment; default: sums of two numbers, which are written to --out"""
    advantage: str = "rebn"
    """advantage estimator: any that needs no critic"""
    updates: int = 30
    """number of updates, each on one batch of episodes"""
    episodes: int = 64
    """episodes per update"""
    samples: int = 2
    """episodes per seed; at least 2 (TRL's num_generations)"""
    max_turn_tokens: int = 32
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 1e-3 for the tiny model, 1e-5 for others"""
    seed: int = 0
    """seed of sampling, of the order of the dataset, and of the sums"""
    out: str = "runs/trl_maths_with_python"
    """output folder; a second run appends to its metrics and episodes"""
    tools: str = "python(max_uses=2)"
    """tools that the model may call; empty: none"""
    warm_up: int = 600
    """updates of SFT on the students, for the tiny model on the default sums only"""
    warm_up_episodes: int = 800
    """episodes that each of the two students plays for the SFT"""
    vllm: bool = False
    """generate with vLLM on the same GPU"""


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
    tiny, gpu = args.model == "tiny", torch.cuda.is_available()
    problems = Path(args.out) / "problems.jsonl"
    rng = random.Random(args.seed)
    # sums up to 98, which is one token for the tiny model
    sums = [(rng.randint(1, 49), rng.randint(1, 49)) for _ in range(4096)]
    problems.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in sums]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = GemConfig(
        args.env or "math:Sample-v0",
        env_kwargs={} if args.env else {"dataset": str(problems)},
        seeds=4096,
        tools=args.tools,
        advantage=args.advantage,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes.jsonl",
        metrics=f"{args.out}/metrics.jsonl",
    )
    settings = GRPOConfig(
        output_dir=f"{args.out}/trainer",
        max_steps=args.updates,
        per_device_train_batch_size=args.episodes,
        num_generations=args.samples,
        max_completion_length=256,
        learning_rate=args.learning_rate or (1e-3 if tiny else 1e-5),
        lr_scheduler_type="constant",
        loss_type="dapo",  # weights every trained token of an update equally
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_max_model_length=1024 if args.vllm else None,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    model, tokenizer = load_model(args.model, "cuda" if gpu else "cpu")
    if tiny and args.tools and not args.env and args.warm_up:
        env = {"wrappers": args.tools, "env_kwargs": config.env_kwargs}
        sft = {"episodes": args.warm_up_episodes, "batch_size": 16, "learning_rate": 2e-3}
        for calls, updates in ((1.0, args.warm_up * 3 // 4), (0.4, args.warm_up // 4)):
            how = {"updates": updates, "player": Student(calls), **env, **sft}
            loss = warm_up(model, tokenizer, config.env_id, **how)
            print(f"SFT warm-up: {updates} updates, loss {loss:.3f}", flush=True)
    train(config, {"model": model, "args": settings, "processing_class": tokenizer})
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
