"""Accessibility tree: a page as the roles, names and values that Chromium gives a screen reader.

Every line is a node with its number, indented by its depth:

    [3] textbox 'Name' = 'Ada'
    [4] tablist ''
      [5] tab 'First' (selected)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_envs.web.page import Element, Outline

__all__ = ["AccessibilityTree", "read_tree"]

_FLAT = frozenset(
    {"", "none", "generic", "paragraph", "LabelText", "Section", "InlineTextBox", "LineBreak"}
)
"""Roles that are skipped; their children take their place. With a name they are shown."""
_STATES = ("disabled", "selected", "expanded", "focused", "pressed")
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class AccessibilityTree:
    """The outline of a page, and the browser's numbers of its nodes."""

    outline: Outline
    dom_nodes: tuple[int, ...]
    """The DOM node of each element, in the order of the numbers."""


def read_tree(nodes: Sequence[Mapping[str, Any]], title: str, path: str) -> AccessibilityTree:
    """Turn the answer of Chromium's `Accessibility.getFullAXTree` into an outline."""
    reader = _Reader({node["nodeId"]: node for node in nodes})
    roots = [node for node in nodes if "parentId" not in node]
    for root in roots:
        reader.read(root, 0, "")
    outline = Outline(title, path, tuple(reader.lines), tuple(reader.elements))
    return AccessibilityTree(outline, tuple(reader.dom_nodes))


class _Reader:
    def __init__(self, nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self.nodes = nodes
        self.lines: list[str] = []
        self.elements: list[Element] = []
        self.dom_nodes: list[int] = []

    def read(self, node: Mapping[str, Any], depth: int, around: str) -> None:
        """Add the lines of a node and its children; `around` is the name of the node outside."""
        role, name = _text(node, "role"), _text(node, "name")
        drawn = "backendDOMNodeId" in node  # else made by a style sheet
        hidden = node.get("ignored", False) or role == "RootWebArea" or not drawn
        said = role == "StaticText" and name in around  # the name of a button is also its text
        if not hidden and not said and (name or role not in _FLAT) and role != "InlineTextBox":
            options = tuple(self._options(node))
            kind = self._add(node, role, name, options, depth)
            if kind in ("combobox", "textbox"):  # the line shows what is inside
                return
            depth, around = depth + 1, name
        for child in self._children(node):
            self.read(child, depth, around)

    def _add(
        self, node: Mapping[str, Any], role: str, name: str, options: tuple[str, ...], depth: int
    ) -> str:
        """Add the line of a node and return its kind."""
        states = {p["name"]: p["value"].get("value") for p in node.get("properties", ())}
        kind = "combobox" if options else "textbox" if states.get("editable") else role
        self.elements.append(Element(kind, states.get("disabled") is True, options))
        self.dom_nodes.append(node["backendDOMNodeId"])
        text = f"[{len(self.elements)}] {role} {_quoted(name)}"
        value = _text(node, "value")
        if kind in ("textbox", "combobox") or value:
            text += f" = '{value}'"
        if options:
            text += " of " + ", ".join(map(_quoted, options))
        if "checked" in states:
            text += " (on)" if states["checked"] == "true" else " (off)"
        text += "".join(f" ({name})" for name in _STATES if states.get(name) in (True, "true"))
        self.lines.append("  " * depth + text)
        return kind

    def _children(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for child in node.get("childIds", ()):
            if child in self.nodes:
                yield self.nodes[child]

    def _options(self, node: Mapping[str, Any]) -> Iterator[str]:
        """Yield the options of a list of choices, and nothing for other nodes."""
        if _text(node, "role") in ("combobox", "listbox", "MenuListPopup"):
            for child in self._children(node):
                if _text(child, "role") in ("option", "MenuListOption"):
                    yield _text(child, "name")
                else:
                    yield from self._options(child)


def _text(node: Mapping[str, Any], field: str) -> str:
    return " ".join(str(node.get(field, {}).get("value", "")).split())


def _quoted(name: str) -> str:
    return f"'{name[:_LONGEST_NAME]}'"
