"""The built site has every field, hook, command and public name, and loads nothing from a network.

`tox -e docs` builds the site and sets GEM_SITE to its folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import importlib
import os
import re
import sys
from pathlib import Path

import pytest
from project import ROOT

import gem_core
from gem_core.cli import commands
from gem_core.env.registry import environments
from gem_core.plugins import hookspecs
from gem_core.training.config import TrainingConfig

if "GEM_SITE" not in os.environ:
    pytest.skip("needs GEM_SITE, the folder of the built site", allow_module_level=True)

SITE = Path(os.environ["GEM_SITE"])
TRAINERS = ("oat", "openrlhf", "rl2", "skyrl", "tinker", "trl", "verl")
RECORD_TYPES = (
    gem_core.Episode,
    gem_core.Turn,
    gem_core.Failure,
    gem_core.Task,
    gem_core.Generation,
)
ENUMERATIONS = (gem_core.StopReason, gem_core.TurnStatus, gem_core.FinishReason)


def test_tables_of_the_records_page_are_current() -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "docs"))
    try:
        records = importlib.import_module("records")
    finally:
        sys.path.pop(0)
    text = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    assert records.with_tables(text) == text


def page(name: str) -> str:
    """The HTML of a page."""
    return (SITE / f"{name}.html").read_text(encoding="utf-8")


def rows(name: str) -> dict[str, list[str]]:
    """The table rows of a page as lists of plain text, by their first cell; the first counts."""
    found: dict[str, list[str]] = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page(name), re.DOTALL):
        cells = [
            html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        ]
        if cells:
            found.setdefault(cells[0], cells)
    return found


@pytest.mark.parametrize(
    "config",
    [
        TrainingConfig,
        *(importlib.import_module(f"gem_{name}.config").GemConfig for name in TRAINERS),
    ],
    ids=lambda config: config.__module__,
)
def test_every_config_field_has_a_sentence(config: type[TrainingConfig]) -> None:
    table = rows("reference/config")
    for field in dataclasses.fields(config):
        assert len(table[field.name]) == 4
        assert all(table[field.name]), f"{field.name} has no sentence: {table[field.name]}"


@pytest.mark.parametrize("kind", RECORD_TYPES, ids=lambda kind: kind.__name__)
def test_every_field_of_a_record_has_a_sentence(kind: type) -> None:
    table = rows("records")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        assert all(table[field.name]), f"{field.name} has no sentence: {table[field.name]}"


@pytest.mark.parametrize("kind", ENUMERATIONS, ids=lambda kind: kind.__name__)
def test_every_value_of_an_enumeration_has_a_sentence(kind: type) -> None:
    table = rows("records")
    for member in kind:  # type: ignore[attr-defined]
        assert all(table[member.value]), f"{member} has no sentence"


def test_every_hook_has_an_entry() -> None:
    hooks = [name for name, value in vars(hookspecs).items() if hasattr(value, "gem_spec")]
    assert len(hooks) > 10
    for name in hooks:
        assert f'id="{name}"' in page("reference/hooks")


def test_every_command_and_option_has_an_entry() -> None:
    text = html.unescape(page("reference/cli"))
    for name, path in commands.all().items():
        assert f'id="gem-rl-{name}"' in text
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(path).add_arguments(parser)
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS:
                assert all(f"<code>{option}</code>" in text for option in action.option_strings)


def test_every_public_name_links_to_its_entry() -> None:
    links = re.findall(r'href="(\w+)\.html#([\w.]+)"><code>(\w+)<', page("reference/api/index"))
    assert {name for _, _, name in links} == set(gem_core.__all__) - {"__version__"}
    for file, anchor, _ in links:
        assert f'id="{anchor}"' in page(f"reference/api/{file}")


def test_every_family_is_in_the_catalogue() -> None:
    text = html.unescape(page("catalogue"))
    namespaces = {env_id.partition(":")[0] for env_id in environments.all()}
    assert all(f"<code>{namespace}:" in text for namespace in namespaces)
    games = {e.partition("-")[0] for e in environments.all() if e.startswith("game:")}
    assert all(f"<code>{game}-v0-easy</code>, seed 1, expert player" in text for game in games)
    if os.environ.get("CI"):  # where every program is installed
        assert "this build lacked" not in text


def test_no_page_loads_anything_from_a_network() -> None:
    pages = list(SITE.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"([^\"]+)\"", text)
        assert [url for url in loaded if re.match(r"(https?:)?//", url)] == [], path
