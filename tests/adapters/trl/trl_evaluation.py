"""One rank of `test_logs.py`: an evaluation whose seeds do not fill the ranks' batches."""

from __future__ import annotations

from gem_conformance.harness import run_rank
from trl import GRPOConfig
from worlds import ECHO, registered

from gem_core.policies.tiny import load_tiny
from gem_trl import GemConfig, GemGRPOTrainer, trainer_kwargs


def work(folder: str) -> dict[str, float]:
    """Evaluate on five seeds, two per batch, and return the logged metrics."""
    model, tokenizer = load_tiny()
    record = f"{folder}/e-{{rank}}.jsonl"
    config = GemConfig(ECHO, seeds=8, eval_seeds=5, max_turn_tokens=6, record=record)
    args = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        num_generations=2,
        num_generations_eval=1,
        max_completion_length=128,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GemGRPOTrainer(
        model=model, args=args, processing_class=tokenizer, **trainer_kwargs(config)
    )
    metrics: dict[str, float] = trainer.evaluate()
    trainer.gem_rollout.close()
    return metrics


if __name__ == "__main__":
    with registered():
        run_rank(work)
