"""One rank of `test_logs.py`: an evaluation whose seeds do not fill the ranks' batches."""

from __future__ import annotations

from gem_conformance.harness import run_rank
from trl_ranks import make_trainer
from worlds import ECHO, registered

from gem_trl import GemConfig


def work(folder: str) -> dict[str, float]:
    """Evaluate on five seeds, two per batch, and return the logged metrics."""
    record = f"{folder}/e-{{rank}}.jsonl"
    config = GemConfig(ECHO, seeds=8, eval_seeds=5, max_turn_tokens=6, record=record)
    trainer = make_trainer(config, folder, per_device_eval_batch_size=2, num_generations_eval=1)
    metrics: dict[str, float] = trainer.evaluate()
    trainer.gem_rollout.close()
    return metrics


if __name__ == "__main__":
    with registered():
        run_rank(work)
