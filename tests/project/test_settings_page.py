"""Tests of docs/settings.md: its table is what the marks of the adapters' tests prove."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
from project import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return scripts/settings_table.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return import_module("settings_table")


def test_page_is_what_the_script_writes(script: ModuleType) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert "<!-- settings -->" in text
    assert script.page(text) == text, "run python scripts/settings_table.py"


def test_marks_have_a_known_state_and_rejections_raise(script: ModuleType) -> None:
    for mark in script.marks():
        assert mark.state in ("works", "rejected"), mark.test
        if mark.state == "rejected":
            assert "raises(" in mark.source or "rejection(" in mark.source, mark.test


def test_cell_without_a_mark_is_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = list(script.marks())
    proven = [m for m in marks if (m.setting, m.trainer) == ("GSPO", "trl")]
    monkeypatch.setattr(script, "marks", lambda: [m for m in marks if m not in proven])
    with pytest.raises(ValueError, match=r"no state or several: .*'GSPO', 'trl'"):
        script.cells()
    wrong = [*marks, script.Mark("trl", "GSPO", "works", "test_it", "")]
    monkeypatch.setattr(script, "marks", lambda: wrong)
    with pytest.raises(ValueError, match="no state or several"):
        script.cells()
    unknown = [*marks, script.Mark("trl", "GSPPO", "works", "test_it", "")]
    monkeypatch.setattr(script, "marks", lambda: unknown)
    with pytest.raises(ValueError, match="without a row: .*GSPPO"):
        script.cells()
