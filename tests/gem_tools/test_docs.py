"""docs/tools.md says what is true: its example runs, and its tables name every tool and every setting."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from project import ROOT
from tool_worlds import Quiz

from gem_tools import tools
from gem_tools.python import PythonTool
from gem_tools.wrapper import ToolWrapper

DOCS = ROOT / "docs"
TEXT = (DOCS / "tools.md").read_text(encoding="utf-8")


def test_the_example_is_a_tool_that_works() -> None:
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[1], names)
    env = ToolWrapper(Quiz(), [names["Dice"]()])
    env.reset(seed=1)
    env.step("<dice>2 5 6</dice>")
    assert env.step("<dice>1 1</dice>")[0] == "2, after [13]"
    found = []
    names["register_tools"](lambda name, *args, **facts: found.append(name))
    assert found == ["dice"]


def test_every_tool_of_gem_is_in_the_table() -> None:
    assert {
        name for name, spec in tools.all().items() if str(spec.entry_point).startswith("gem_tools.")
    } == set(re.findall(r"^\| `(\w+)` \| (?:runs|BM25|asks|the tools)", TEXT, re.MULTILINE))


@pytest.mark.parametrize(
    ("owner", "document"),
    [(ToolWrapper, TEXT), (PythonTool, (DOCS / "sandbox.md").read_text(encoding="utf-8"))],
)
def test_every_setting_is_in_a_table(owner: Any, document: str) -> None:
    settings = {
        p.name
        for p in inspect.signature(owner.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    told = {
        name
        for row in re.findall(r"^\| (`.*?) \|", document, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert settings - told == set()
