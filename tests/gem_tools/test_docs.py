"""Check that docs/tools.md and docs/sandbox.md list every tool and every setting."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from project import ROOT

from gem_tools import tools
from gem_tools.python import PythonTool
from gem_tools.wrapper import ToolWrapper

DOCS = ROOT / "docs"
TEXT = (DOCS / "tools.md").read_text(encoding="utf-8")


def test_docs_list_every_tool() -> None:
    table = TEXT[TEXT.index("| Name | What it does |") : TEXT.index("| Setting | Meaning |")]
    names = {
        name for name, spec in tools.all().items() if str(spec.entry_point).startswith("gem_tools.")
    }
    assert names == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


@pytest.mark.parametrize(
    ("owner", "document"),
    [(ToolWrapper, TEXT), (PythonTool, (DOCS / "sandbox.md").read_text(encoding="utf-8"))],
)
def test_docs_list_every_setting(owner: Any, document: str) -> None:
    settings = {
        p.name
        for p in inspect.signature(owner.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    documented = {
        name
        for row in re.findall(r"^\| (`.*?) \|", document, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert settings - documented == set()
