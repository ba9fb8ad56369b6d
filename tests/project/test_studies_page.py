"""docs/studies.md is what `python benchmarks/studies.py report` makes of the committed results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from importlib import import_module
from types import ModuleType

import pytest
from project import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return benchmarks/studies_report as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return import_module("studies_report")


def test_page_has_the_tables_of_the_committed_results(report: ModuleType) -> None:
    # in a process of its own: a table registers environments, which other tests would list
    code = (
        "from studies_report import *; "
        "print(with_tables(PAGE.read_text(encoding='utf-8'), read(RESULTS)), end='')"
    )
    path = os.pathsep.join([str(BENCHMARKS), *sys.path])
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    text = report.PAGE.read_text(encoding="utf-8")
    assert made.stdout == text, "run python benchmarks/studies.py report"
    assert set(re.findall(r"<!-- table (\S+) -->", text)) == set(report.TABLES)
    for figure in re.findall(r"\((images/\S+)\)", text):
        assert (report.PAGE.parent / figure).is_file(), "run python benchmarks/studies.py report"


def test_committed_results_match_the_plan(report: ModuleType) -> None:
    planned = {run.name: run for run in report.plan()}
    rates: dict[str, float] = {}
    for name, result in report.read(report.RESULTS).items():
        run = planned[name]
        if run.updates and run.rate is None:
            rates = rates or import_module("algorithms_plan").tuned(report.RESULTS, report.plan())
            run = replace(run, rate=rates.get(run.algorithm, rates["rebn"]))
        if run.expert_pilot:
            chosen = import_module("algorithms_plan").chosen_updates
            updates = chosen(report.RESULTS, run.expert_pilot, report.plan())
            run = replace(run, expert_updates=updates)
        # a setting that is newer than the result has the default that acts as before
        assert result["run"].items() <= json.loads(json.dumps(asdict(run))).items()


def test_committed_results_on_a_cpu_match_their_plan(report: ModuleType) -> None:
    plan = import_module("studies_cpu_plan")
    planned = {run.name: run for run in plan.cpu_plan()}
    paths = sorted(report.RESULTS.glob("*/tiny/*.json"))
    assert paths
    models: dict[str, set[str]] = {}
    for path in paths:
        result = json.loads(path.read_text(encoding="utf-8"))
        run = json.loads(json.dumps(asdict(planned[result["run"]["name"]])))
        assert result["run"].items() <= run.items()
        models.setdefault(path.parent.parent.name, set()).add(result["model"])
    assert all(len(own) == 1 for own in models.values()), "a study has one model"
