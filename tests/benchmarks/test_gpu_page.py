"""GPU page: its tables are the committed results, and `collect` reads what the trainers write."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from project import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_report as report
import gpu_runs
from report_tables import with_tables

from gem_core import ConfigError


def test_the_page_has_the_committed_figures() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert with_tables(text, report.TABLES, gpu_runs.runs()) == text


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of a run of two updates; results go to `tmp_path`."""
    monkeypatch.setattr(gpu_runs, "RESULTS", tmp_path / "results")
    folder = tmp_path / "run"
    folder.mkdir()
    update = {"success": 0.5, "tokens": 100, "seconds": 2.0, "episodes": 4, "turn/0/return": 1.0}
    update["grad_norm"] = 0.5
    lines = [json.dumps({"step": i, **update}) for i in range(3)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    samples = ["t, 90, 1000"] * 8 + ["t, 25, 1000"] * 16 + ["t, 0, 1000"] * 4
    (folder / "gpu.csv").write_text("\n".join(samples) + "\n", encoding="utf-8")
    return folder


def test_stages_of_verl_are_in_its_log(run: Path) -> None:
    steps = [f"step:{i} - timing_s/gen:{s} - timing_s/adv:0.5" for i, s in enumerate((9, 1.0, 2.0))]
    (run / "log.txt").write_text("\n".join(steps), encoding="utf-8")
    gpu_runs.collect(gpu_runs.Collect(run, "verl", 0, alone=True))
    kept = gpu_runs.runs()["verl"][0]
    assert kept["stages"] == {"rollout": 1.5, "advantages": 0.5}
    assert kept["gpu_busy"] == 0.25
    assert "turn/0/return" not in kept["updates"][0]
    row = f"| {kept['date']} | 2.00 | 30 | 75% | 25% |  | 0% | 25% | 50 | rollout 1.5, advantages"
    assert row in report.speed_table(gpu_runs.runs())


def test_stages_of_trl_have_its_names(run: Path) -> None:
    stages = {
        "T._prepare_inputs": [9, 1.0, 1.2],
        "T.vLLM.generate": [9, 0.6, 0.6],
        "T.sync_weights": [9, 0.2, 0.2],
        "T.compute_loss": [9, 0.5, 0.5],
        "T._calculate_rewards": [9, 0.1, 0.1],
    }
    (run / "stages.json").write_text(json.dumps(stages), encoding="utf-8")
    gpu_runs.collect(gpu_runs.Collect(run, "trl", 1, alone=True))
    kept = gpu_runs.runs()["trl"][1]
    expected = {"rollout and logprobs": 1.1, "of these, generation": 0.6}
    assert kept["stages"] == {**expected, "of these, weight sync": 0.2, "loss": 0.5}
    # the longest episode of 0.8 s contains the weight sync
    assert report._shares({**kept, "rollout": 0.8}, 2.0) == pytest.approx([0.3, 0.45, 0.1, 0.15])


def test_updates_a_minute_include_slow_ones(run: Path) -> None:
    seconds = [9.0, 1.0, 1.0, 2.0]
    known = {
        "updates": [{"seconds": s, "tokens": 100} for s in seconds],
        "stages": {},
        "gpu_busy": None,
    }
    assert report._speed(known)[:2] == ["1.00", "45"]


def test_aims_are_judged_for_the_trainers_that_ran_alone(run: Path) -> None:
    gpu_runs.collect(gpu_runs.Collect(run, "verl", 0, alone=True))  # 2 s an update
    gpu_runs.collect(gpu_runs.Collect(run, "trl", 0, alone=True))
    gpu_runs.collect(gpu_runs.Collect(run, "openrlhf", 0))
    rows = report.aims_table(gpu_runs.runs()).splitlines()[2:]
    assert [row.split(" | ")[-1] for row in rows] == ["no |", "yes |"]
    assert "| verl | less than 3 s | 2.00 s | 30 | yes |" in rows


def test_gradient_norms_are_compared_over_runs() -> None:
    def of(*norms: float) -> dict[int, dict[str, object]]:
        return {i: {"updates": [{"grad_norm": n}]} for i, n in enumerate(norms)}

    same = {"trl": of(0.1, 0.3, 0.2, 0.4), "verl": of(0.4, 0.2, 0.3, 0.1)}
    assert "than chance explains: p = 1.00" in report.norms_text(same)
    apart = {"trl": of(0.1, 0.1, 0.2, 0.2), "verl": of(0.3, 0.3, 0.4, 0.4)}
    # 2 of the 70 ways to divide eight runs are this far apart
    assert re.search(r"depend on the trainer: p = 0\.0[23]", report.norms_text(apart))


def test_stages_of_the_engine_are_lists(run: Path) -> None:
    stages = {"rollout": [9, 1.0, 1.2], "update": [9, 0.2, 0.4]}
    (run / "stages.json").write_text(json.dumps(stages), encoding="utf-8")
    gpu_runs.collect(gpu_runs.Collect(run, "engine", 0, alone=True, model="0a1b"))
    kept = gpu_runs.runs()["engine"][0]
    assert kept["stages"] == {"rollout": 1.1, "update": 0.3}
    assert kept["model"] == "0a1b"


def test_a_run_beside_others_has_no_times(run: Path) -> None:
    gpu_runs.collect(gpu_runs.Collect(run, "openrlhf", 2))
    known = gpu_runs.runs()
    assert "OpenRLHF" not in report.speed_table(known)
    assert "| OpenRLHF | 3 | 50% (50% to 50%) |" in report.success_table(known)


def test_an_unknown_trainer_is_an_error(run: Path) -> None:
    with pytest.raises(ConfigError, match="unknown trainer 'nemo'"):
        gpu_runs.collect(gpu_runs.Collect(run, "nemo", 0))


def test_the_largest_gap_is_that_of_any_three_updates_of_several_seeds() -> None:
    def of(*curves: list[float]) -> dict[int, dict[str, object]]:
        return {i: {"updates": [{"success": s} for s in own]} for i, own in enumerate(curves)}

    known = {
        "trl": of([0.1, 0.1, 0.1, 0.4], [0.1, 0.1, 0.1, 0.7]),
        "verl": of([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1]),
        "skyrl": of([0.9, 0.9, 0.9, 0.9]),  # one seed has no range
    }
    text = report.largest_gap(known)
    assert "is 10.0 points: TRL above verl in updates 1 to 3." in text
    # the ranges are [0.1, 0.1] in the updates 0 to 2, and [0.2, 0.3] above [0.1, 0.1] later
    assert "disjoint in 50% of all comparisons; 33% are expected" in text


def test_the_figure_has_the_runs_that_two_seeds_have_reached_the_end_of() -> None:
    def of(*lengths: int) -> dict[int, dict[str, object]]:
        return {seed: {"updates": [{}] * n} for seed, n in enumerate(lengths)}

    assert [path.name for path in report._longest("verl", of(18, 25, 25))] == ["1", "2"]
    assert [path.name for path in report._longest("trl", of(25, 20, 25))] == ["0", "2"]
    assert [path.name for path in report._longest("rl2", of(25, 20))] == ["0", "1"]
