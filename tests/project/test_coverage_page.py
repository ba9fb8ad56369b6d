"""Tests of docs/coverage.md, which scripts/coverage_page.py writes."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

import pytest
from project import ROOT

from gem_core.cli import commands
from gem_core.env.registry import environments


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return scripts/coverage_page.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return import_module("coverage_page")


def test_page_is_what_the_script_writes(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page() == text, "run python scripts/coverage_page.py"


def test_commands_files_and_ids_in_the_notes_exist(script: ModuleType) -> None:
    for name in re.findall(r"`([^`]+)`", script.PAGE.read_text(encoding="utf-8")):
        if name.startswith("gem-rl "):
            assert name.split()[1] in commands.all(), name
            ids = [word for word in name.split() if ":" in word]
            assert all(id in environments.all() for id in ids), name
        elif name.startswith("examples/"):
            assert (ROOT / name).is_file(), name


def test_state_follows_from_what_a_row_names(script: ModuleType) -> None:
    row = script.Row
    assert script.state_of(row("x", ("game:*",))) == "works"
    assert script.state_of(row("x", ("game:*",), differs="other rules")) == "differs"
    assert script.state_of(row("x", ("math:GSM8K",))) == "elsewhere"
    assert script.state_of(row("x", estimators=("rebn",))) == "works"
    assert script.state_of(row("x", note="not here")) == "no"


def test_unknown_names_and_uncovered_families_are_errors(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in (
        script.Row("x", ("gaem:*",)),
        script.Row("x", ("game:Wordel-v0",)),
        script.Row("x", wrappers=("reflekt",)),
        script.Row("x", commands=("sweet",)),
    ):
        with pytest.raises(SystemExit, match="coverage_rows.py names"):
            script._here(row)
    without = [row for row in script.ENVIRONMENTS if row.ids != ("maze:*",)]
    monkeypatch.setattr(script, "ENVIRONMENTS", without)
    with pytest.raises(SystemExit, match="names the ids maze:"):
        script.page()
