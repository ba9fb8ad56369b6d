"""Train a model on GuessTheNumber with TRL's GRPOTrainer and per-turn advantages.

    python examples/trl_guess_the_number.py                            # tiny model, CPU, minutes
    python examples/trl_guess_the_number.py --advantage grpo --samples 8
    python examples/trl_guess_the_number.py --model smollm2 --vllm --warm-up 10 --updates 25

The last command needs one GPU. Writes metrics.jsonl and episodes.jsonl to --out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import tyro
from trl import GRPOConfig

from gem_core.adapter_kit.settings import reject, too_small
from gem_core.policies.models import load_model
from gem_core.training.warm_up import warm_up
from gem_trl import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator: any that needs no critic"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on"""
    updates: int = 60
    """number of updates, each on one batch of episodes"""
    episodes: int | None = None
    """episodes per update; default: 128 for the tiny model, 256 for others"""
    samples: int = 2
    """episodes per seed; at least 2 (TRL's num_generations)"""
    micro_batch: int | None = None
    """episodes in one forward pass (not in one update); default: 256 on a GPU, else all"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """seed of sampling and of the order of the dataset"""
    out: str = "runs/trl_guess_the_number"
    """output folder; a second run appends to its metrics and episodes"""
    max_response: int = 384
    """token cap of everything after the first prompt (TRL's max_completion_length)"""
    warm_up: int = 0
    """updates of SFT on a random player before training, which teach the action format"""
    save_every: int = 0
    """updates between two checkpoints, in trainer/ of the output folder; 0: none"""
    resume: str | None = None
    """checkpoint folder to continue from, such as OUT/trainer/checkpoint-20"""
    vllm: bool = False
    """generate with vLLM on the same GPU"""
    vllm_memory: float = 0.3
    """share of the GPU memory for vLLM"""
    correction: bool = False
    """importance correction with vLLM's logprobs; TRL's default is on"""


def main(args: Args) -> None:
    tiny, gpu = args.model == "tiny", torch.cuda.is_available()
    rate = (2e-3 if tiny else 3e-5) if args.learning_rate is None else args.learning_rate
    episodes = (128 if tiny else 256) if args.episodes is None else args.episodes
    reject([too_small("--episodes", episodes, 1)])
    micro_batch = math.gcd(episodes, args.micro_batch or (256 if gpu else episodes))
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes.jsonl",
        metrics=f"{args.out}/metrics.jsonl",
    )
    settings = GRPOConfig(
        output_dir=f"{args.out}/trainer",
        max_steps=args.updates,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=episodes // micro_batch,
        num_generations=args.samples,
        max_completion_length=args.max_response,
        learning_rate=rate,
        lr_scheduler_type="constant",
        loss_type="dapo",  # weights every trained token of an update equally
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=args.vllm_memory,
        vllm_max_model_length=1024 if args.vllm else None,
        vllm_importance_sampling_correction=args.correction,
        # gem decodes the ids itself
        generation_kwargs={"detokenize": False} if args.vllm else None,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="steps" if args.save_every else "no",
        save_steps=args.save_every or 500,
        resume_from_checkpoint=args.resume,
        report_to="none",
        seed=args.seed,
    )
    model, tokenizer = load_model(args.model, "cuda" if gpu else "cpu")
    if args.warm_up:
        loss = warm_up(model, tokenizer, args.env, updates=args.warm_up, seed=args.seed)
        print(f"SFT warm-up: {args.warm_up} updates, loss {loss:.3f}", flush=True)
    train(config, {"model": model, "args": settings, "processing_class": tokenizer})
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
