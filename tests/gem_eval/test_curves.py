"""Curves: the metrics file survives what a training run may meet, and the mean and band are those of its runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gem_core import hookimpl, register_plugin
from gem_core.__main__ import main
from gem_core.errors import ConfigError, MissingDependencyError, RecordError
from gem_core.plugins.manager import unregister_plugin
from gem_core.training.metrics_file import MetricsFile, read_metrics
from gem_eval.curves import curve_of
from gem_eval.tracker import Tracker


def written(path: Path, values: list[float | None], metric: str = "success") -> Path:
    file = MetricsFile(path)
    for step, value in enumerate(values):
        file.write(step=step, **{metric: value})
    return path


def test_a_line_per_update_in_a_file_or_in_the_folder_of_a_run(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "run").write(step=0, success=0.5, **{"gem/failed": 0})
    MetricsFile(tmp_path / "other.jsonl").write(0, success=float("nan"))
    assert read_metrics(tmp_path / "run") == [{"step": 0, "success": 0.5, "gem/failed": 0}]
    assert json.loads((tmp_path / "other.jsonl").read_text()) == {"step": 0, "success": None}


def test_a_killed_run_is_gone_on_from_and_its_half_line_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.jsonl", [0.1, 0.2])
    with path.open("a") as file:
        file.write('{"step": 2, "succ')
    assert [m["step"] for m in read_metrics(path)] == [0, 1]
    MetricsFile(path).write(step=2, success=0.3)
    assert [m["success"] for m in read_metrics(path)] == [0.1, 0.2, 0.3]
    MetricsFile(path, overwrite=True)
    assert not path.exists()


def test_a_run_without_an_update_leaves_no_metrics(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "metrics.jsonl").touch()  # as earlier versions left it
    MetricsFile(tmp_path).write(step=0, success=0.5)
    assert len(read_metrics(tmp_path)) == 1


def test_what_is_no_number_and_what_is_no_metrics_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'success' must be a number"):
        MetricsFile(tmp_path).write(step=0, success="high")  # type: ignore[arg-type]
    (tmp_path / "bad.jsonl").write_text("hello\n")
    with pytest.raises(RecordError, match="line 1, is no JSON"):
        read_metrics(tmp_path / "bad.jsonl")
    with pytest.raises(RecordError, match="cannot be read"):
        read_metrics(tmp_path / "none.jsonl")


def test_the_mean_and_the_band_of_three_seeds_by_hand(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / name, values)
        for name, values in {"a": [0.0, 0.2], "b": [0.1, 0.4], "c": [0.2, 0.9]}.items()
    ]
    curve = curve_of(runs)
    assert curve.steps == (0, 1)
    assert curve.mean == pytest.approx((0.1, 0.5))
    assert curve.high[0] - curve.mean[0] == pytest.approx(
        0.1
    )  # the standard deviation of 0, 0.1 and 0.2
    spread = curve_of(runs, band="range")
    assert (spread.low, spread.high) == ((0.0, 0.2), (0.2, 0.9))


def test_a_curve_is_smoothed_run_by_run_and_ends_with_the_shortest(tmp_path: Path) -> None:
    runs = [written(tmp_path / "a", [0.0, 1.0, 0.0, 1.0]), written(tmp_path / "b", [0.0, 0.0])]
    curve = curve_of(runs, smooth=2)
    assert curve.mean == pytest.approx((0.0, 0.25))
    assert (curve.shortest, curve.longest) == (2, 4)


def test_a_metric_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no numbers under 'loss'; it has: success"):
        curve_of([written(tmp_path / "a", [0.5])], "loss")


def test_every_update_is_an_event_for_plugins(tmp_path: Path) -> None:
    class Listener:
        heard: list[tuple[int, Mapping[str, float | None]]] = []  # noqa: RUF012 - one listener

        @hookimpl
        def update_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
            self.heard.append((step, metrics))

    register_plugin(Listener(), "listener")
    try:
        MetricsFile(tmp_path).write(step=3, success=0.5)
    finally:
        unregister_plugin("listener")
    assert Listener.heard == [(3, {"success": 0.5})]


def test_a_tracker_that_is_not_installed_or_not_known_says_so() -> None:
    with pytest.raises(MissingDependencyError, match=r"\.\[wandb\]"):
        Tracker("wandb")
    with pytest.raises(ConfigError, match="one of wandb, trackio"):
        Tracker("mlflow")


def test_plot_without_matplotlib_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written(tmp_path / "a", [0.5])
    assert main(["plot", str(tmp_path / "a"), "--out", str(tmp_path / "c.png")]) == 2
    assert "pip install '.[plot]'" in capsys.readouterr().err
