"""Train a model to guess a number, with RL2's PPOTrainer and per-turn advantages.

torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --model tiny --updates 20
torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --advantage grpo --samples 8
torchrun --nproc_per_node=8 examples/rl2_guess_the_number.py --model path/of/a/model --learning-rate 1e-6
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tyro

from gem_core.policies.models import model_path
from gem_rl2 import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """a model folder, a hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture"""
    advantage: str = "rebn"
    """the estimator: any registered one that needs no critic"""
    gamma: float = 0.9
    """the discount per turn"""
    seeds: int | None = None
    """the number of seeds to train on, in whole epochs; by default as many as the updates need, each used once"""
    updates: int = 60
    """the number of updates, each on one batch of episodes"""
    episodes: int = 128
    """episodes per update; a multiple of `samples`"""
    samples: int = 2
    """episodes per seed: RL2's responses_per_prompt"""
    max_turn_tokens: int = 24
    """the cap on the tokens of one turn"""
    learning_rate: float = 2e-3
    """of AdamW; 2e-3 is for the tiny model, use 1e-6 for others"""
    seed: int = 0
    """the first seed to train on is `seed` million; SGLang seeds its own sampling"""
    out: str = "runs/rl2_guess_the_number"
    """folder of the metrics, the episodes and the model; a second run into it appends to metrics and episodes"""
    max_length: int = 16384
    """tokens a GPU takes in one forward pass of the loss; no sequence may be longer"""
    settings: tuple[str, ...] = ()
    """further settings of RL2, as on its command line: `actor.kl.coef=0.01 actor.kl.type=loss`"""


def main(args: Args) -> None:
    prompts = args.episodes // args.samples
    seeds = args.seeds or prompts * args.updates
    config = GemConfig(
        args.env,
        seeds=range(args.seed * 10**6, args.seed * 10**6 + seeds),
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
        f"train_data.prompts_per_rollout={prompts}",
        f"train_data.responses_per_prompt={args.samples}",
        "rollout.dynamic_filtering=false",
        f"trainer.n_epochs={math.ceil(args.updates / max(seeds // prompts, 1))}",
        f"trainer.save_dir={args.out}/model",
        "trainer.experiment_name=guess_the_number",
        "trainer.use_wandb=false",
        *args.settings,
    ]
    train(config, settings)
    print(
        f"metrics: {args.out}/metrics.jsonl   (gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl)"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
