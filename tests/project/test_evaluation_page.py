"""Tests of docs/evaluation_set.md, whose results scripts/evaluation_set_page.py writes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from project import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return scripts/evaluation_set_page.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return import_module("evaluation_set_page")


def summary(script: ModuleType) -> dict[str, Any]:
    file = script.RESULTS / "players.json"
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def test_page_is_what_the_script_writes(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page() == text, "run python scripts/evaluation_set_page.py"


def test_model_of_another_machine_gets_rows_and_a_list_of_what_it_did_not_play(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = summary(script)
    (result,) = (
        r for r in run["results"] if (r["player"], r["id"]) == ("random", "sql:Query-v0-simple")
    )
    model = {**run, "results": [{**result, "player": "model"}], "max_tokens": 256}
    (tmp_path / "players.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "model.json").write_text(json.dumps(model), encoding="utf-8")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    page = script.page()
    assert f"| model | 1 | {run['date']} | temperature 1, 256 tokens a turn |" in page
    assert "| sql | model | 1 | 10 | 0.000 | 0% |" in page
    assert "- model: `game:GuessTheNumber-v0-hard`, " in page
    (tmp_path / "again.json").write_text(json.dumps(model), encoding="utf-8")
    with pytest.raises(SystemExit, match="two files have results of"):
        script.page()


def test_run_with_fewer_seeds_is_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**summary(script), "seeds": 2}), encoding="utf-8")
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match="other settings than the suite"):
        script.page()
