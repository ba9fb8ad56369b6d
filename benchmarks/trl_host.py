"""Measure the host code of TRL's recipe: an update without generation, weight sync and gradient.

    python benchmarks/trl_host.py              # prints the seconds of each part of an update

A random player takes the place of vLLM, and a model of one tiny layer that of SmolLM2; tokenizer,
episodes, records and TRL's batches are those of the recipe. No GPU is needed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from statistics import median
from typing import Any

import torch
import trl_stages
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer

from gem_core.policies.models import load_model
from gem_trl.rollout import GemRollout
from gem_trl.trainer import GemAdvantages

UPDATES = 11
SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 1024}

seconds: dict[str, list[float]] = {}
"""The seconds of each call, by part."""


def measured(owner: Any, name: str, part: str) -> None:
    """Keep the seconds of every call of a method."""
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        result = method(*args, **kwargs)
        seconds.setdefault(part, []).append(time.perf_counter() - began)
        return result

    setattr(owner, name, call)


def main() -> None:
    torch.set_num_threads(1)
    _, tokenizer = load_model("smollm2")
    config = LlamaConfig(vocab_size=len(tokenizer), **SIZES, **HEADS)
    model, rng = LlamaForCausalLM(config), random.Random(0)
    guesses = [[*tokenizer.encode(f"\\boxed{{{n}}}"), tokenizer.eos_token_id] for n in range(1, 11)]

    def guess(trainer: Any, prompts: list[Any], *args: Any, **kwargs: Any) -> Any:
        return [rng.choice(guesses) for _ in prompts], None

    def no_loss(trainer: Any, model: Any, inputs: Any, **kwargs: Any) -> Any:
        return sum(p.sum() for p in model.parameters()) * 0.0

    measured(GemRollout, "play", "episodes")
    measured(GemRollout, "record", "records")
    measured(GRPOTrainer, "_generate_and_score_completions", "TRL's batch")
    measured(GemAdvantages, "_generate_and_score_completions", "all")
    GRPOTrainer._generate_single_turn = guess
    GRPOTrainer.compute_loss = no_loss
    recipe = trl_stages.recipe
    recipe.load_model = lambda name, device: (model, tokenizer)
    with tempfile.TemporaryDirectory() as out:
        recipe.main(recipe.Args("smollm2", updates=UPDATES, micro_batch=256, out=out))
    parts = {part: median(calls[1:]) for part, calls in seconds.items()}
    parts["gem's rows, checks, advantages and metrics"] = 2 * parts["all"] - sum(parts.values())
    parts["all"] = parts.pop("all")
    print("\n| Part of an update of 256 episodes | Seconds |\n|---|---|")
    for part, number in parts.items():
        print(f"| {part} | {number:.2f} |")


if __name__ == "__main__":
    main()
