"""Tests of programs that docs/gpu.md names, with the tiny model on a CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from project import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import bfloat16_steps
import engine_curve


def test_small_steps_from_rounded_weights_have_little_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bfloat16_steps.main(bfloat16_steps.Args("tiny", learning_rate=1e-5))
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[1:]]
    reached = [[int(cell.strip().rstrip("%")) for cell in row[1:]] for row in rows]
    assert [row[0] for row in reached] == sorted(row[0] for row in reached)
    assert reached[0][0] < 20 < 80 < reached[0][1]


def test_engine_curve_plays_the_same_tasks_twice(tmp_path: Path) -> None:
    engine_curve.main(engine_curve.Args("tiny", updates=1, out=tmp_path))
    (update,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert update["episodes"] == 256
    assert 0.2 < update["success"] < 0.9
