"""Terminal task: initial files, an instruction, and tests of the result."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ITEMS",
    "PEOPLE",
    "WORDS",
    "File",
    "TerminalTask",
    "Test",
    "lines_file",
    "pick",
    "table_file",
    "text_of",
]

File = tuple[str, str, int]
"""(path, text, mode)"""
Test = tuple[str, str, Any]
"""(kind, path or command, expected); `gem_envs.terminal.checks` defines the kinds."""

PEOPLE = (
    "alice",
    "bob",
    "carla",
    "dmitri",
    "esther",
    "farid",
    "greta",
    "hugo",
    "ines",
    "jonas",
    "kira",
    "liam",
    "mona",
    "nils",
)
WORDS = (
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "iris",
    "juniper",
    "kelp",
    "lotus",
    "maple",
)
ITEMS = (
    "bolts",
    "cables",
    "drills",
    "filters",
    "gaskets",
    "hinges",
    "lamps",
    "motors",
    "nails",
    "pumps",
    "screws",
    "valves",
)


@dataclass(frozen=True, slots=True)
class TerminalTask:
    """A task at a bash prompt."""

    instruction: str
    files: tuple[File, ...]
    tests: tuple[Test, ...]
    solution: tuple[str, ...]
    """Commands that pass all tests; gem's own tests run them for every kind."""
    setup: str = ""
    """A command that the terminal runs before the first turn."""


def text_of(lines: Sequence[Any]) -> str:
    """Return the text of a file with these lines."""
    return "\n".join(map(str, lines)) + "\n"


def lines_file(path: str, lines: Sequence[Any], mode: int = 0o644) -> File:
    """Return a file with these lines."""
    return path, text_of(lines), mode


def table_file(path: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> File:
    """Return a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return path, text.getvalue(), 0o644


def pick(rng: random.Random, count: int) -> list[str]:
    """Draw different words."""
    return rng.sample(WORDS, count)
