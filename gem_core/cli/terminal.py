"""Terminal: where a command writes. Tables fit the width of a terminal, and are never cut where the output is piped."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["say", "table", "width"]

_GAP = "  "
_NARROWEST = 6
"""No column is made narrower than this, however small the terminal."""


def say(text: str = "", *, end: str = "\n") -> None:
    """Writes a line, at once: a person may be waiting for it, and a pipe may have been closed."""
    print(text, end=end, flush=True)


def width() -> int | None:
    """The columns there are, None where nobody is looking."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None) -> str:
    """Rows in aligned columns. Where `columns` is given, cells are wrapped so that no line is longer."""
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
    """Takes a column at a time from the widest one until they fit."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths
