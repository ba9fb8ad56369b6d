"""Terminal output: lines, and tables that fit the terminal. Piped tables are not wrapped."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["say", "styled", "table", "width"]

_GAP = "  "
_FIRST = 0.4
"""The part of the terminal for the first column. A longer name has a line of its own, unbroken."""
_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a line and flush it, to notice a closed pipe here."""
    print(text, end=end, flush=True)


def width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def styled(text: str, style: str) -> str:
    """Return text in bold or in a colour, if stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None) -> str:
    """Return rows in aligned columns; wrap cells to fit lines into `columns` characters.

    The first column has names. No name and no word is broken: where all columns are too many for
    the terminal, a row becomes its name and lines of `HEADER value`.
    """
    cells = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    if columns is not None:
        words = [max(len(w) for c in column for w in c.split() or [""]) for column in zip(*cells)]
        room = columns - len(_GAP) * (len(widths) - 1)
        for first in (widths[0], int(_FIRST * columns), len(_GAP)):
            narrow = _narrowed([min(first, widths[0]), *widths[1:]], words, room)
            if sum(narrow) <= room:
                widths = narrow
                break
        else:
            return "\n".join(_as_pairs(headers, row, columns) for row in rows)
    lines: list[str] = []
    for number, row in enumerate(cells):
        wrapped = [
            textwrap.wrap(cell, w, break_on_hyphens=False) or [""]
            for cell, w in zip(row, widths, strict=True)
        ]
        if len(row[0]) > widths[0]:
            lines.append(styled(row[0], "cyan" if number else "bold"))
            wrapped[0] = [""]
        for i in range(max(len(cell) for cell in wrapped)):
            parts = [
                (cell[i] if i < len(cell) else "").ljust(w)
                for cell, w in zip(wrapped, widths, strict=True)
            ]
            line = _GAP.join(parts).rstrip()
            name = parts[0].strip()
            if number == 0:
                line = styled(line, "bold")
            elif name:
                line = styled(name, "cyan") + line[len(name) :]
            lines.append(line)
    return "\n".join(lines)


def _narrowed(widths: list[int], smallest: list[int], room: int) -> list[int]:
    """Shrink the widest columns, but for the first, until all fit or none can shrink."""
    widths = list(widths)
    while sum(widths) > room:
        spare = [0, *(w if w > least else 0 for w, least in zip(widths[1:], smallest[1:]))]
        if not any(spare):
            break
        widths[spare.index(max(spare))] -= 1
    return widths


def _as_pairs(headers: Sequence[str], row: Sequence[str], columns: int) -> str:
    lines = [styled(row[0], "cyan"), ""]
    for header, cell in zip(headers[1:], row[1:], strict=True):
        pair = f"{_GAP}{header} {cell}"
        if lines[-1] and len(lines[-1]) + len(pair) > columns:
            lines.append("")
        lines[-1] += pair
    return "\n".join(lines)
