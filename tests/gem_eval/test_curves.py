"""Metrics files survive interrupted runs, and learning curves have the right mean and band."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gem_core import hookimpl, register_plugin
from gem_core.__main__ import main
from gem_core.errors import ConfigError, MissingDependencyError, RecordError
from gem_core.plugins.manager import unregister_plugin
from gem_core.training.metrics_file import MetricsFile, read_metrics
from gem_eval.curves import curve_of
from gem_eval.tracker import Tracker
from gem_eval.trainer_logs import read_log


def write_run(path: Path, values: list[float | None], metric: str = "success") -> Path:
    file = MetricsFile(path)
    for step, value in enumerate(values):
        file.write(step=step, **{metric: value})
    return path


def test_metrics_file_writes_one_line_per_update_to_a_file_or_run_folder(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "run").write(step=0, success=0.5, **{"gem/failed": 0})
    MetricsFile(tmp_path / "other.jsonl").write(0, success=float("nan"))
    assert read_metrics(tmp_path / "run") == [{"step": 0, "success": 0.5, "gem/failed": 0}]
    assert json.loads((tmp_path / "other.jsonl").read_text()) == {"step": 0, "success": None}


def test_metrics_file_resumes_a_killed_run_and_drops_its_partial_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "metrics.jsonl", [0.1, 0.2])
    with path.open("a") as file:
        file.write('{"step": 2, "succ')
    assert [m["step"] for m in read_metrics(path)] == [0, 1]
    MetricsFile(path).write(step=2, success=0.3)
    assert [m["success"] for m in read_metrics(path)] == [0.1, 0.2, 0.3]
    MetricsFile(path, overwrite=True)
    assert not path.exists()


def test_run_without_an_update_writes_no_metrics(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "metrics.jsonl").touch()  # as earlier versions wrote it
    MetricsFile(tmp_path).write(step=0, success=0.5)
    assert len(read_metrics(tmp_path)) == 1


def test_metrics_file_rejects_non_numbers_and_invalid_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'success' must be a number"):
        MetricsFile(tmp_path).write(step=0, success="high")  # type: ignore[arg-type]
    (tmp_path / "bad.jsonl").write_text("hello\n")
    with pytest.raises(RecordError, match="line 1, is not JSON"):
        read_metrics(tmp_path / "bad.jsonl")
    with pytest.raises(RecordError, match="cannot be read"):
        read_metrics(tmp_path / "none.jsonl")


def test_curve_of_three_seeds_has_the_expected_mean_and_band(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, values)
        for name, values in {"a": [0.0, 0.2], "b": [0.1, 0.4], "c": [0.2, 0.9]}.items()
    ]
    curve = curve_of(runs)
    assert curve.steps == (0, 1)
    assert curve.mean == pytest.approx((0.1, 0.5))
    # the standard deviation of 0, 0.1 and 0.2
    assert curve.high[0] - curve.mean[0] == pytest.approx(0.1)
    spread = curve_of(runs, band="range")
    assert (spread.low, spread.high) == ((0.0, 0.2), (0.2, 0.9))


def test_curve_of_a_file_with_two_runs_is_that_of_the_last(tmp_path: Path) -> None:
    file = Path(write_run(tmp_path / "a", [0.9, 0.9, 0.9])) / "metrics.jsonl"
    again = Path(write_run(tmp_path / "b", [0.1, 0.2])) / "metrics.jsonl"
    old = file.read_text().replace('"step"', '"other": 1.0, "step"')
    file.write_text(old + again.read_text())
    assert curve_of([str(tmp_path / "a")]).mean == pytest.approx((0.1, 0.2))
    assert not any("other" in line for line in read_log(file))


def test_curve_smooths_each_run_and_ends_with_the_shortest_run(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", [0.0, 1.0, 0.0, 1.0]), write_run(tmp_path / "b", [0.0, 0.0])]
    curve = curve_of(runs, smooth=2)
    assert curve.mean == pytest.approx((0.0, 0.25))
    assert (curve.shortest, curve.longest) == (2, 4)


def trainer_state(folder: Path, *history: dict[str, Any]) -> Path:
    """Write the state of a checkpoint, as TRL does."""
    folder.mkdir(parents=True)
    state = {"global_step": history[-1]["step"], "log_history": list(history)}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def trl_line(step: int, success: float) -> dict[str, Any]:
    return {"step": step, "gem/success": success, "num_tokens": 100.0 * step, "step_time": 2.0}


def test_curve_of_a_trl_run_is_read_from_its_last_checkpoint(tmp_path: Path) -> None:
    lines = [trl_line(5, 0.2), trl_line(10, 0.4), trl_line(15, 0.6)]
    trainer_state(tmp_path / "checkpoint-9", *lines[:1])
    trainer_state(tmp_path / "checkpoint-15", *lines, {"step": 15, "eval_loss": 1.0})
    curve = curve_of([tmp_path])
    assert (curve.steps, curve.mean) == ((5, 10, 15), (0.2, 0.4, 0.6))
    assert curve_of([tmp_path], "eval_loss").steps == (15,)
    assert curve_of([tmp_path / "checkpoint-9"]).steps == (5,)
    assert curve_of([tmp_path], x="tokens").x == (500.0, 1000.0, 1500.0)
    assert curve_of([tmp_path], x="seconds").x == (10.0, 20.0, 30.0)
    with pytest.raises(ConfigError, match="does not have the episodes of its updates"):
        curve_of([tmp_path], x="episodes")
    trainer_state(tmp_path / "evaluated" / "checkpoint-2", lines[0], {"step": 7, "e": 1}, lines[1])
    assert curve_of([tmp_path / "evaluated"], x="tokens").x == (500.0, 1000.0)
    assert curve_of([tmp_path / "evaluated"], "e", x="seconds").x == (10.0,)
    assert curve_of([tmp_path / "evaluated"], x="seconds").x == (10.0, 20.0)


def test_metrics_of_a_run_have_priority_over_its_checkpoints(tmp_path: Path) -> None:
    trainer_state(tmp_path / "checkpoint-9", trl_line(9, 0.9))
    write_run(tmp_path, [0.1, 0.2])
    assert curve_of([tmp_path]).mean == (0.1, 0.2)


def test_x_axis_is_the_mean_total_of_the_runs(tmp_path: Path) -> None:
    for name, tokens in (("a", 10), ("b", 30)):
        file = MetricsFile(tmp_path / name)
        for step in range(3):
            file.write(step=step, success=0.5, tokens=tokens, episodes=4, seconds=0.5)
    runs = [tmp_path / "a", tmp_path / "b"]
    assert curve_of(runs, x="tokens").x == (20.0, 40.0, 60.0)
    assert curve_of(runs, x="episodes").x == (4.0, 8.0, 12.0)
    assert curve_of(runs).x == (0, 1, 2)
    with pytest.raises(ConfigError, match="x must be one of updates, episodes, tokens, seconds"):
        curve_of(runs, x="hours")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": 3}'])
def test_damaged_trainer_state_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(RecordError, match="trainer_state.json"):
        curve_of([tmp_path / "trainer_state.json"])


def test_folder_without_a_log_lists_the_known_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics.jsonl, trainer_state.json .*tfevents"):
        curve_of([tmp_path])


def test_tensorboard_without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events.out.tfevents.1.host").touch()
    with pytest.raises(MissingDependencyError, match=r"\.\[tensorboard\]"):
        curve_of([tmp_path])


def test_missing_metric_error_lists_the_available_metrics(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no numbers for 'loss'; its metrics: success"):
        curve_of([write_run(tmp_path / "a", [0.5])], "loss")


def test_each_update_sends_an_event_to_plugins(tmp_path: Path) -> None:
    events: list[tuple[int, Mapping[str, float | None]]] = []

    class Listener:
        @hookimpl
        def update_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
            events.append((step, metrics))

    register_plugin(Listener(), "listener")
    try:
        MetricsFile(tmp_path).write(step=3, success=0.5)
    finally:
        unregister_plugin("listener")
    assert events == [(3, {"success": 0.5})]


def test_tracker_rejects_missing_and_unknown_libraries() -> None:
    with pytest.raises(MissingDependencyError, match=r"\.\[wandb\]"):
        Tracker("wandb")
    with pytest.raises(ConfigError, match="one of wandb, trackio"):
        Tracker("mlflow")


def test_plot_without_matplotlib_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_run(tmp_path / "a", [0.5])
    assert main(["plot", str(tmp_path / "a"), "--out", str(tmp_path / "c.png")]) == 2
    assert "pip install '.[plot]'" in capsys.readouterr().err
