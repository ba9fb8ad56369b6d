"""Two real processes under gloo: training, a failing environment, and lockstep generation.

vLLM's server mode, tensor parallelism and sharded weights make generation a collective call. A rank
that skips a call, or sends fewer prompts, hangs the others. Here the ranks play episodes of
different length on a mock engine that asserts equal calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gem_conformance.harness import start_ranks

from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    one_turn_each, up_to_three = [0, 3, 6, 9], [0, 1, 2, 5]
    inputs = [(str(folder), seeds) for seeds in (one_turn_each, up_to_three)]
    return start_ranks("trl_ranks", inputs, timeout=600)


@pytest.mark.setting("Data parallel", "works")
def test_ranks_train_one_model_on_their_own_episodes(
    ranks: list[dict[str, Any]], folder: Path
) -> None:
    assert ranks[0]["weights"] == ranks[1]["weights"] != ranks[0]["before"]
    (line,) = read_metrics(folder / "m.jsonl")
    episodes = [list(read_episodes(folder / f"e-{rank}.jsonl")) for rank in (0, 1)]
    assert [len(part) for part in episodes] == [2, 2]
    assert line["episodes"] == 4
    numbers = [a for part in episodes for e in part for a in e.final_info["advantages"]]
    mean = sum(map(abs, numbers)) / len(numbers)
    assert line["advantage_abs"] == pytest.approx(mean), "the statistics cover both ranks"


def test_failing_environment_ends_both_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "every episode of the last 3 updates failed" in rank["error"]
        assert "in a bad mood" in rank["error"]


def test_episodes_of_different_length_do_not_deadlock(ranks: list[dict[str, Any]]) -> None:
    calls = [rank["calls"] for rank in ranks]
    assert calls[0] == calls[1] == [4, 4, 4] * 2, (
        "three rounds of four prompts in each of two rollouts, on both ranks"
    )
