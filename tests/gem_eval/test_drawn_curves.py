"""Learning curves drawn with matplotlib, and metrics logged to trackio."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter
from trackio.sqlite_storage import SQLiteStorage

from gem_core.__main__ import main
from gem_core.training.metrics_file import MetricsFile
from gem_eval.curves import curve_of
from gem_eval.tracker import Tracker

SVG = "{http://www.w3.org/2000/svg}"


def write_run(path: Path, slope: float) -> None:
    metrics = MetricsFile(path)
    for step in range(20):
        metrics.write(step=step, success=0.3 + slope * step, loss=1.0 / (step + 1))


def test_plot_draws_curves_with_seed_bands_as_png_and_svg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        write_run(tmp_path / f"rebn-{seed}", 0.02 + 0.005 * seed)
    write_run(tmp_path / "grpo-0", 0.01)
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
    groups = xml.etree.ElementTree.parse(svg).iter(f"{SVG}g")
    assert any(g.get("id", "").startswith("FillBetween") for g in groups), "no band was drawn"
    first = svg.read_bytes()
    assert main(args) == 0
    assert svg.read_bytes() == first, "equal numbers must give equal bytes"


def test_plot_reads_the_event_files_of_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tags are those of TRL, which puts its own metrics and gem's under `train/`."""
    with SummaryWriter(str(tmp_path / "out" / "runs" / "now")) as writer:
        for step in range(1, 6):
            writer.add_scalar("train/gem/success", step / 10, step, walltime=1e9 + 60 * step)
            writer.add_scalar("train/num_tokens", 100 * step, step, walltime=1e9 + 60 * step)
    plot = ["plot", str(tmp_path / "out"), "--out", str(tmp_path / "curve.pdf")]
    assert main(plot) == 0
    assert "success 0.100 at update 1, 0.500 at update 5" in capsys.readouterr().out
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    curve = curve_of([tmp_path / "out"], x="seconds")
    assert curve.x == (0.0, 60.0, 120.0, 180.0, 240.0)
    assert curve_of([tmp_path / "out"], x="tokens").x[-1] == 500.0


def test_plot_rejects_unknown_suffixes_and_patterns_without_matches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", 0.02)
    assert main(["plot", str(tmp_path / "a"), "--out", str(tmp_path / "c.docx")]) == 2
    assert main(["plot", f"{tmp_path}/b*"]) == 2
    errors = capsys.readouterr().err
    assert "use .png, .svg or .pdf" in errors
    assert "no file or folder matches" in errors


def test_tracker_logs_the_lines_of_the_metrics_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    with Tracker("trackio", project="gem-test", name="seed 0", config={"gamma": 0.9}):
        MetricsFile(tmp_path / "run").write(step=7, success=0.5, loss=float("nan"))
    MetricsFile(tmp_path / "run").write(step=8, success=0.6)  # after the run: not logged
    (logged,) = SQLiteStorage.get_logs("gem-test", "seed 0")
    assert (logged["step"], logged["success"]) == (7, 0.5)
    assert "loss" not in logged
