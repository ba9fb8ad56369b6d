"""Tests of docs/environments.md, which `gem-rl envs --markdown` generates."""

from __future__ import annotations

import re

import pytest
from project import ROOT

from gem_core.__main__ import main
from gem_core.env.registry import environments

PAGE = ROOT / "docs" / "environments.md"


def test_environments_page_equals_the_command_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8"), (
        "run: gem-rl envs --markdown > docs/environments.md"
    )


def test_environments_page_lists_every_id_once_with_its_facts() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = [id for row in rows for id in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert sorted(named) == sorted(environments.all())
    for spec in environments.all().values():
        (row,) = (row for row in rows if f"`{spec.id}`" in row)
        facts = [cell.strip() for cell in row.strip("| ").split(" | ")[1:]]
        turns = "-" if spec.turns is None else str(spec.turns)
        assert facts == [
            spec.summary,
            ", ".join(spec.tags),
            turns,
            spec.reward,
            spec.data,
            spec.extra or "-",
            "yes" if spec.offline else "no",
        ]
