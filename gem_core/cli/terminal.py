"""Terminal output: lines, and tables that fit the terminal. Piped tables are not wrapped."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["say", "table", "width"]

_GAP = "  "
_NARROWEST = 6
"""The minimum width of a column, however small the terminal."""


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a line and flush it, to notice a closed pipe here."""
    print(text, end=end, flush=True)


def width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None) -> str:
    """Return rows in aligned columns; wrap cells to fit lines into `columns` characters."""
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    if columns is not None:
        widths = _narrowed(widths, columns - len(_GAP) * (len(widths) - 1))
    lines: list[str] = []
    for row in cells:
        wrapped = [
            textwrap.wrap(cell, w, break_on_hyphens=False) or [""]
            for cell, w in zip(row, widths, strict=True)
        ]
        for i in range(max(len(cell) for cell in wrapped)):
            parts = [
                (cell[i] if i < len(cell) else "").ljust(w)
                for cell, w in zip(wrapped, widths, strict=True)
            ]
            lines.append(_GAP.join(parts).rstrip())
    return "\n".join(lines)


def _narrowed(widths: list[int], room: int) -> list[int]:
    """Shrink the widest column by one until all fit."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths
