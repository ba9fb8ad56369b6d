"""docs/records.md has every key of `info` that gem reads or writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from project import ROOT

PAGE = ROOT / "docs" / "records.md"
NAMES = ("info", "final_info")
METHODS = ("get", "pop", "setdefault")


def is_info(node: ast.expr) -> bool:
    """Whether an expression is a variable or an attribute with the name of an info."""
    return (isinstance(node, ast.Name) and node.id in NAMES) or (
        isinstance(node, ast.Attribute) and node.attr in NAMES
    )


def texts(nodes: list[ast.expr | None]) -> Iterator[str]:
    """Yield the values of the nodes that are string constants."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def keys_in(tree: ast.AST) -> Iterator[str]:
    """Yield the constant keys with which a module reads or writes an info."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) if "reset" in name:
                for inner in ast.walk(node):
                    match inner:
                        case ast.Return(value=ast.Tuple(elts=[_, ast.Dict(keys=keys)])):
                            yield from texts(keys)
            case ast.Subscript(value=value, slice=key) if is_info(value):
                yield from texts([key])
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[key, *_]) if (
                attr in METHODS and is_info(value)
            ):
                yield from texts([key])
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[value]) if (
                is_info(value)
            ):
                yield from texts([key])
            case ast.Assign(targets=[target], value=ast.Dict(keys=keys)) if is_info(target):
                yield from texts(keys)
            case ast.AnnAssign(target=target, value=ast.Dict(keys=keys)) if is_info(target):
                yield from texts(keys)
            case ast.keyword(arg=arg, value=ast.Dict(keys=keys)) if arg in NAMES:
                yield from texts(keys)
            # the result of a step
            case ast.Return(value=ast.Tuple(elts=[_, _, _, _, ast.Dict(keys=keys)])):
                yield from texts(keys)


def test_the_page_lists_every_key() -> None:
    keys = {
        key
        for folder in ("gem_core", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        for key in keys_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(keys) > 40
    section = PAGE.read_text(encoding="utf-8").partition("## Keys of `info`")[2]
    first_cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    documented = {key for cell in first_cells for key in re.findall(r"`(\w+)`", cell)}
    assert keys - documented == set()
