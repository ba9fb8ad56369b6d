"""Train a model on GuessTheNumber with RL2's PPOTrainer and per-turn advantages.

    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --model tiny --updates 20
    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --advantage grpo --samples 8
    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --model smollm2

RL2 generates with SGLang, which needs a GPU. Writes metrics.jsonl, episodes.jsonl and the model to
--out.
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
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator; `gae` loads a critic"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int | None = None
    """number of seeds to train on, in whole epochs; default: as many as the updates need"""
    updates: int = 60
    """number of updates, each on one batch of episodes"""
    episodes: int | None = None
    """episodes per update (a multiple of `samples`); default: 128 for `tiny`, 256 for others"""
    samples: int = 2
    """episodes per seed; `grpo` and `rloo` need at least 2 (RL2's responses_per_prompt)"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """first seed to train on, in millions; SGLang seeds its own sampling"""
    out: str = "runs/rl2_guess_the_number"
    """output folder; a second run appends to its metrics and episodes"""
    max_length: int = 16384
    """token cap of a sequence, and of one forward pass on a GPU"""
    settings: tuple[str, ...] = ()
    """further RL2 settings, as on its command line: `actor.kl.coef=0.01 actor.kl.type=loss`"""


def main(args: Args) -> None:
    tiny = args.model == "tiny"
    rate = (2e-3 if tiny else 3e-5) if args.learning_rate is None else args.learning_rate
    episodes = (128 if tiny else 256) if args.episodes is None else args.episodes
    prompts = episodes // args.samples
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
        f"actor.lr={rate}",
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
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
