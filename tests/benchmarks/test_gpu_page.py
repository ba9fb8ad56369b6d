"""GPU page: its table is the committed result."""

from __future__ import annotations

import json
from statistics import median

from project import ROOT


def test_the_page_has_the_committed_figures() -> None:
    path = ROOT / "benchmarks" / "results" / "gpu" / "updates.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for run in result["runs"]:
        stages = ", ".join(f"{name} {seconds}" for name, seconds in run["stages"].items())
        row = f"| {run['trainer']} | {run['settings']} | {round(median(run['seconds']), 2)} | "
        assert row + (f"{stages} |" if stages else "|") in page
    assert f"{result['episodes']} episodes an update" in page
