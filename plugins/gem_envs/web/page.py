"""Pages as text: the outline of a page and the elements on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Element", "Outline"]


@dataclass(frozen=True, slots=True)
class Element:
    """An element on a page that the agent can act on."""

    kind: str
    """`link`, `button`, `textbox`, `combobox`, `checkbox` or `radio`; any role of a tree."""
    disabled: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """A page as text."""

    title: str
    path: str
    lines: tuple[str, ...]
    elements: tuple[Element, ...]
    """Ordered by element number, starting with 1."""
