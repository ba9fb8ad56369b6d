"""Curves drawn for real, and a tracker that is really there: trackio, which keeps its runs in a file."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest
from trackio.sqlite_storage import SQLiteStorage

from gem_core.__main__ import main
from gem_core.training.metrics_file import MetricsFile
from gem_eval.tracker import Tracker

SVG = "{http://www.w3.org/2000/svg}"


def run(path: Path, rise: float) -> None:
    metrics = MetricsFile(path)
    for step in range(20):
        metrics.write(step=step, success=0.3 + rise * step, loss=1.0 / (step + 1))


def test_curves_with_bands_over_seeds_as_png_and_svg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        run(tmp_path / f"rebn-{seed}", 0.02 + 0.005 * seed)
    run(tmp_path / "grpo-0", 0.01)
    png, svg = tmp_path / "curve.png", tmp_path / "curve.svg"
    args = [
        "plot",
        f"rebn={tmp_path}/rebn-*",
        f"grpo={tmp_path}/grpo-0",
        "--out",
        str(png),
        "--out",
        str(svg),
        "--smooth",
        "3",
    ]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "rebn: 3 runs, success 0.300 at update 0" in out
    assert "grpo: 1 run" in out
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = xml.etree.ElementTree.parse(svg)
    assert [g for g in drawn.iter(f"{SVG}g") if g.get("id", "").startswith("FillBetween")], "a band"
    first = svg.read_bytes()
    assert main(args) == 0
    assert svg.read_bytes() == first, "equal numbers, equal bytes"


def test_a_wrong_ending_and_a_pattern_without_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", 0.02)
    assert main(["plot", str(tmp_path / "a"), "--out", str(tmp_path / "c.docx")]) == 2
    assert main(["plot", f"{tmp_path}/b*"]) == 2
    errors = capsys.readouterr().err
    assert "end in .png, .svg or .pdf" in errors
    assert "nothing is there that matches" in errors


def test_a_tracker_logs_what_the_metrics_file_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    with Tracker("trackio", project="gem-test", name="seed 0", config={"gamma": 0.9}):
        MetricsFile(tmp_path / "run").write(step=7, success=0.5, loss=float("nan"))
    MetricsFile(tmp_path / "run").write(step=8, success=0.6)  # nobody listens any more
    (logged,) = SQLiteStorage.get_logs("gem-test", "seed 0")
    assert (logged["step"], logged["success"]) == (7, 0.5)
    assert "loss" not in logged
