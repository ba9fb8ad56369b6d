"""TRL's logs with gem's episodes: evaluation metrics, tables of completions, and lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pandas
import pytest
from gem_conformance.harness import start_ranks
from trl import GRPOTrainer
from worlds import ECHO, MOODY

from gem_core.records.file import read_episodes
from gem_core.training.metrics import BatchMetrics
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode
from gem_trl import GemConfig, GemGRPOTrainer


def assert_logged(log: dict[str, Any], episodes: Sequence[Episode]) -> None:
    """Assert that `eval_gem/…` are the means over the episodes."""
    means = {f"eval_gem/{n}": v for n, v in BatchMetrics.of(episodes).means().items()}
    logged = {n: v for n, v in log.items() if n.startswith("eval_gem/")}
    assert means == pytest.approx({n: v for n, v in logged.items() if "advantage" not in n})


@pytest.mark.parametrize("trainer_class", [GemGRPOTrainer, GRPOTrainer])
def test_evaluation_metrics_are_means_over_episodes(
    make_trainer: Callable[..., Any], tmp_path: Path, trainer_class: Any
) -> None:
    """Nine seeds in batches of eight and one; TRL would log the mean of the two batches' means."""
    config = GemConfig(
        ECHO, seeds=16, eval_seeds=9, max_turn_tokens=6, record=str(tmp_path / "e.jsonl")
    )
    trainer = make_trainer(
        config,
        trainer_class,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=8,
        num_generations_eval=1,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "eval_gem/return" in log]
    episodes = [e for e in read_episodes(tmp_path / "e.jsonl") if e.final_info.get("evaluation")]
    assert len(logs) == 2 and len(episodes) == 18
    for log, part in zip(logs, (episodes[:9], episodes[9:])):
        assert_logged(log, part)
        assert ("eval_gem/advantage_abs" in log) == (trainer_class is GemGRPOTrainer)


def test_interrupted_evaluation_does_not_count_in_the_next(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    config = GemConfig(
        ECHO, seeds=8, eval_seeds=3, max_turn_tokens=6, record=str(tmp_path / "e.jsonl")
    )
    trainer = make_trainer(config, per_device_eval_batch_size=2, num_generations_eval=1)
    predict, steps = trainer.prediction_step, iter([0, 1])

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(steps):
            raise KeyboardInterrupt
        return predict(*args, **kwargs)

    trainer.prediction_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.evaluate()
    trainer.prediction_step = predict
    log = trainer.evaluate()
    trainer.gem_rollout.close()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    assert len(episodes) == 2 + 3
    assert_logged(log, episodes[2:])


def test_evaluation_on_two_ranks_counts_every_seed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seeds in batches of two: accelerate plays three of them again to fill the batches."""
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the ranks import from it too
    logs = start_ranks("trl_evaluation", [str(tmp_path)] * 2, timeout=600)
    parts = [list(read_episodes(tmp_path / f"e-{rank}.jsonl")) for rank in (0, 1)]
    # the order in which the ranks play them: a batch of rank 0, one of rank 1, and so on
    batches = [[part[i : i + 2] for i in range(0, len(part), 2)] for part in parts]
    played = list(chain(*chain(*zip_longest(*batches, fillvalue=[]))))
    counts = Counter(e.seed for e in played)
    assert len(counts) == 5 and max(counts.values()) == 2
    once = {e.seed: e for e in reversed(played)}
    for log in logs:
        assert_logged(log, list(once.values()))


def test_tables_and_lengths_of_a_rewritten_history_have_no_padding(
    make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    """Episodes of three sequences, and failed ones: four first rows, and at least six others."""
    config = GemConfig(
        f"1*{ECHO} + 1*{MOODY}",
        seeds=[0, 1, 2, 3, 4, 5, 8, 11],
        wrappers="concat",
        max_turn_tokens=6,
        record=str(tmp_path / "e.jsonl"),
    )
    trainer = make_trainer(config, per_device_train_batch_size=16, log_completions=True)
    trainer.train()
    episodes = list(read_episodes(tmp_path / "e.jsonl"))
    (path,) = (tmp_path / "trainer" / "completions").glob("*.parquet")
    table = pandas.read_parquet(path)
    assert len(table) == len(episodes) == 16
    for line, episode in zip(table.to_dict("records"), episodes):
        if episode.failed:
            assert math.isnan(line["episode_return"]) and line["advantage"] == 0
        else:
            assert line["episode_return"] == pytest.approx(episode.total_reward)
            assert line["advantage"] == pytest.approx(episode.final_info["advantages"][0])
    lengths = [sum(s.mask) for e in episodes if not e.failed for s in token_sequences(e)]
    assert {len(token_sequences(e)) for e in episodes} >= {2, 3}
    assert any(e.failed for e in episodes)
    log = trainer.state.log_history[0]
    assert log["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert log["completions/min_length"] == min(lengths) > 0
    assert log["completions/max_length"] == max(lengths)
    assert log["completions/min_terminated_length"] > 0
