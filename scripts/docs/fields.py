"""Fields: the documented attributes of a class, read from its source without importing it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import griffe
from links import ROOT

__all__ = [
    "Field",
    "body",
    "cell",
    "code",
    "fields_of",
    "first_sentence",
    "load",
    "table_of_fields",
]

_PATHS = [str(ROOT / folder) for folder in ("", "plugins", "adapters")]


@dataclass(frozen=True)
class Field:
    """An attribute of a class: its type, default and description."""

    name: str
    type: str
    default: str
    """The source of the default; empty if the field is required."""
    text: str


@cache
def _package(name: str) -> Any:
    return griffe.GriffeLoader(search_paths=_PATHS).load(name, try_relative_path=False)


def load(path: str) -> Any:
    """Return a module, or an object `module:name`, as griffe reads it from the source."""
    package, _, rest = path.replace(":", ".").partition(".")
    return _package(package)[rest] if rest else _package(package)


def fields_of(path: str) -> list[Field]:
    """Return the annotated attributes of a class, or the members of an enumeration."""
    found = []
    for name, member in load(path).members.items():
        if not member.is_attribute or name.startswith("_") or "property" in member.labels:
            continue
        value = "" if member.value is None else str(member.value)
        factory = re.fullmatch(r"field\(default_factory=(\w+)\)", value)
        default = (
            {"dict": "{}", "list": "[]"}.get(factory[1], f"{factory[1]}()") if factory else value
        )
        text = " ".join(member.docstring.value.split()) if member.docstring else ""
        found.append(Field(name, str(member.annotation or ""), default, text))
    return found


def first_sentence(member: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    text = member.docstring.value if member.docstring else ""
    return " ".join(text.split("\n\n")[0].split())


def body(module: str) -> str:
    """Return the docstring of a module after its first line."""
    return str(load(module).docstring.value.partition("\n")[2].strip()) + "\n"


def code(text: str) -> str:
    """Return text as code for a table cell."""
    return cell(f"`{text}`") if text else ""


def cell(text: str) -> str:
    """Return text for a table cell: outside code, pipes and angle brackets are escaped."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("|", "\\|").replace("<", "&lt;")
    return "`".join(parts)


def table_of_fields(path: str, without: tuple[str, ...] = ()) -> str:
    """Return a table of the fields of a class."""
    rows = [
        f"| {code(each.name)} | {code(each.type)} | {code(each.default) or 'required'} "
        f"| {cell(each.text)} |"
        for each in fields_of(path)
        if each.name not in without
    ]
    return "\n".join(["| Field | Type | Default | Meaning |", "|---|---|---|---|", *rows])
