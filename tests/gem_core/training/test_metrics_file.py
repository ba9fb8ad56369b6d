"""The metrics file of runs that are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.errors import RecordError
from gem_core.training.metrics import BatchMetrics
from gem_core.training.metrics_file import MetricsFile, read_metrics

RUNS = {"killed", "resumed", "first", "second"}


def steps(path: Path) -> list[tuple[int, str]]:
    """Return (update, run) of each line."""
    return [(line["step"], run) for line in read_metrics(path) for run in line.keys() & RUNS]


def write(path: Path, run: str, updates: range) -> None:
    """Write the updates of a run as adapters do."""
    log = UpdateLog(str(path))
    for update in updates:
        log.write(update, BatchMetrics(), **{run: 1.0})


def test_resumed_run_replaces_the_updates_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, "killed", range(4))
    write(path, "resumed", range(2, 5))
    expected = [(0, "killed"), (1, "killed"), (2, "resumed"), (3, "resumed"), (4, "resumed")]
    assert steps(path) == expected


def test_lines_of_an_earlier_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, "first", range(3))
    write(path, "second", range(2))
    write(path, "resumed", range(1, 3))
    first = [(0, "first"), (1, "first"), (2, "first")]
    assert steps(path) == [*first, (0, "second"), (1, "resumed"), (2, "resumed")]
    with path.open("a") as file:
        file.write('{"note": 5}\n')
    write(path, "resumed", range(1, 2))
    assert '{"note": 5}\n' in path.read_text(), "a line of another program stays, with those before"


def test_file_without_an_update_log_is_appended_to(tmp_path: Path) -> None:
    """A program with its own loop may count from 1."""
    for _ in range(2):
        MetricsFile(tmp_path).write(1, loss=0.5)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 1]


@pytest.mark.parametrize("content", ['{"q": 1}', '{"q": 1}\n{"q": 2}', "notes\n"])
def test_other_files_are_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "dataset.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecordError, match="is not a metrics file"):
        MetricsFile(path)
    assert path.read_text(encoding="utf-8") == content


def test_incomplete_first_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"st', encoding="utf-8")
    MetricsFile(path).write(step=0)
    assert [line["step"] for line in read_metrics(path)] == [0]
