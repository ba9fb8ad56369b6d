"""Fine-tune a model on exported expert episodes with TRL's SFTTrainer, before RL.

    gem-rl export sft game:GuessTheNumber-v0-easy --episodes 500 --out sft.jsonl
    python examples/trl_sft.py --data sft.jsonl                        # tiny model, CPU, minutes
    gem-rl eval game:GuessTheNumber-v0-easy --model runs/trl_sft/model

Each row is a prompt and one completion; only the completion is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import tyro
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from gem_core.policies.models import load_model


@dataclass
class Args:
    data: str = "sft.jsonl"
    """the dataset, from `gem-rl export sft`"""
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    epochs: float = 3.0
    """passes over the dataset"""
    batch_size: int = 32
    """rows per update"""
    learning_rate: float | None = None
    """learning rate; default: 1e-3 for the tiny model, 1e-5 for others"""
    max_length: int = 4096
    """token cap of a row; longer rows are cut"""
    seed: int = 0
    """seed of the order of the dataset"""
    out: str = "runs/trl_sft"
    """output folder; the model goes to its folder model"""


def main(args: Args) -> None:
    gpu = torch.cuda.is_available()
    model, tokenizer = load_model(args.model, "cuda" if gpu else "cpu")
    data = load_dataset("json", data_files=args.data, split="train")
    settings = SFTConfig(
        output_dir=f"{args.out}/trainer",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate or (1e-3 if args.model == "tiny" else 1e-5),
        lr_scheduler_type="constant",
        max_length=args.max_length,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    trainer = SFTTrainer(
        model=model,
        args=settings,
        train_dataset=data.select_columns(["prompt", "completion"]),
        processing_class=tokenizer,
    )
    result = trainer.train()
    trainer.save_model(f"{args.out}/model")
    print(f"loss {result.training_loss:.3f} on {len(data):,} rows; model: {args.out}/model")


if __name__ == "__main__":
    main(tyro.cli(Args))
