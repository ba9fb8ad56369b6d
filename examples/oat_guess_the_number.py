"""Train a model on GuessTheNumber with oat's multi-turn PPO and per-turn advantages.

    python examples/oat_guess_the_number.py --model tiny --updates 20
    python examples/oat_guess_the_number.py --advantage gae            # with oat's critic
    python examples/oat_guess_the_number.py --advantage grpo --samples 8
    python examples/oat_guess_the_number.py --model Qwen/Qwen3-0.6B --bf16 --gpus 8 \\
        --max-turn-tokens 512 --learning-rate 1e-6

oat needs Linux on x86_64, Python 3.10 and a GPU. Writes metrics.jsonl and, for each actor,
episodes-0.jsonl to --out.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro
from oat.algorithms.ppo import PPOArgs
from transformers.utils import is_flash_attn_2_available

from gem_core.policies.models import model_path
from gem_oat import GemConfig, ppo_kwargs, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator; `gae` also trains oat's critic"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on"""
    updates: int = 60
    """number of updates, each on one batch of turns"""
    samples: int = 1
    """episodes per seed; `grpo` and `rloo` need at least 2"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate of the policy; default: 1e-3 for `tiny`, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """seed of the order of the dataset and of the critic; oat seeds vLLM with the clock"""
    out: str = "runs/oat_guess_the_number"
    """output folder; a second run appends to its metrics and episodes"""
    turns: int = 256
    """turns per update and GPU: oat counts turns, not episodes"""
    concurrency: int = 32
    """concurrent episodes per GPU; more of them sample more turns from older weights"""
    critic_learning_rate: float | None = None
    """learning rate of the critic, for `gae`; default: 2e-3 for the tiny model, 3e-5 for others"""
    max_context: int = 2048
    """token cap of a prompt and its completion"""
    lora_rank: int = 0
    """rank of LoRA adapters; 0 trains all weights"""
    save_every: int = 0
    """updates between two checkpoints, in trainer/ of the output folder; 0: none"""
    resume: str = ""
    """folder `checkpoints` to continue from; --updates is the total"""
    eager: bool = False
    """do not compile vLLM's model: it starts faster and generates more slowly"""
    gpus: int = 1
    """GPUs of this machine; each plays and trains"""
    bf16: bool = False
    """use bfloat16 and, if it is installed, flash-attention; not for the tiny model"""


def main(args: Args) -> None:
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        samples=args.samples,
        concurrency=args.concurrency,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        engine_kwargs={"enforce_eager": args.eager},
        record=f"{args.out}/episodes-{{rank}}.jsonl",  # one file per actor
        metrics=f"{args.out}/metrics.jsonl",
    )
    tiny, batch = args.model == "tiny", args.turns * args.gpus
    rate, critic_rate = args.learning_rate, args.critic_learning_rate
    settings = PPOArgs(
        pretrain=model_path(args.model),
        gpus=args.gpus,
        collocate=True,
        bf16=args.bf16,
        flash_attn=args.bf16 and is_flash_attn_2_available(),
        beta=0.0,
        max_model_len=args.max_context,
        max_train=batch * args.updates,
        rollout_batch_size=batch,
        rollout_batch_size_per_device=args.turns,
        train_batch_size=batch,
        learning_rate=(1e-3 if tiny else 3e-5) if rate is None else rate,
        critic_learning_rate=(2e-3 if tiny else 3e-5) if critic_rate is None else critic_rate,
        lr_scheduler="constant",
        shm_size_mb=500,
        master_addr="127.0.0.1",
        lora_rank=args.lora_rank,
        save_path=f"{args.out}/trainer",
        save_ckpt=bool(args.save_every),
        save_steps=args.save_every or -1,
        resume_dir=args.resume,
        seed=args.seed,
        **ppo_kwargs(config),
    )
    train(config, settings)
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes-0.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
