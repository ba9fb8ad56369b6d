"""Minesweeper: reveal every cell without a mine; a number counts the mines around it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws

__all__ = ["Minesweeper"]

_MINE = -1


class Minesweeper(Game):
    """Minesweeper: rewards revealed cells / safe cells; a cleared board totals 1, a mine gives 0.

    The game ends with the last safe cell, with or without flags. `reset` draws the order in which
    cells receive mines. The first revealed cell and, if possible, its neighbours are skipped, so a
    seed gives nearly the same board for any first cell. Some boards require a guess.
    """

    action_example = "reveal row column"

    @draws("rows", "cols", "num_mines", "max_turns")
    def __init__(
        self,
        rows: int = 8,
        cols: int = 8,
        num_mines: int = 10,
        max_turns: int = 64,
        randomize: bool = False,
    ) -> None:
        self.rows, self.cols = whole_number("rows", rows, 2, 50), whole_number("cols", cols, 2, 50)
        self.num_mines = whole_number("num_mines", num_mines, 1, rows * cols - 1)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        safe_cells = rows * cols - num_mines
        if max_turns < safe_cells:
            raise ConfigError(
                f"{safe_cells} safe cells may need as many turns, got max_turns={max_turns}; "
                "increase max_turns or num_mines"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.rows = self.cols = size = self.rng.randint(5, 8)
            self.num_mines, self.max_turns = size * size // 5, size * size
        cells = self.rows * self.cols
        self.mine_order = self.rng.sample(range(cells), cells)
        self.counts: list[int] = []
        """Number of mines around each cell, `_MINE` for a mine; empty before the first reveal."""
        self.shown = ["."] * cells
        self.hidden_safe = cells - self.num_mines
        return (
            f"Minesweeper: {self.num_mines} mines lie under the {self.rows} x {self.cols} cells "
            "of this board. Reveal every cell without a mine; revealing a mine loses. "
            "'.' is a hidden cell, 'F' a flag, "
            "a number counts the mines among the up to 8 cells around it, "
            "and around a 0 all cells are revealed. The first cell you reveal is never a mine. "
            f"You have {self.max_turns} turns.\n"
            "Moves: 'reveal row column', or 'flag row column' to set or remove a flag "
            "(flags are not needed to win; a flagged cell cannot be revealed). "
            "Rows and columns count from 0.\n"
            f"{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        words = action.split()
        if len(words) != 3 or not all(
            w.isascii() and w.isdigit() and len(w) < 10 for w in words[1:]
        ):
            return self.unreadable(action, "of the form 'reveal row column' or 'flag row column'")
        verb, row, col = words[0].lower(), int(words[1]), int(words[2])
        if verb not in ("reveal", "flag"):
            return self.unreadable(action, "of the form 'reveal row column' or 'flag row column'")
        if row >= self.rows or col >= self.cols:
            return self._answer(f"({row}, {col}) is not on the board.")
        cell = row * self.cols + col
        mark = self.shown[cell]
        if mark not in ".F":
            return self._answer(f"({row}, {col}) is revealed already.")
        if verb == "flag":
            self.shown[cell] = "F" if mark == "." else "."
            done = "set" if mark == "." else "removed"
            return self._answer(f"You {done} a flag at ({row}, {col}).")
        if mark == "F":
            return self._answer(f"({row}, {col}) is flagged; remove the flag first.")
        if not self.counts:
            self._lay_mines(cell)
        if self.counts[cell] == _MINE:
            self.shown[cell] = "*"
            return self.lost(f"({row}, {col}) is a mine. You lost.\n{self._board()}")
        revealed = self._reveal(cell)
        self.hidden_safe -= revealed
        reward = revealed / (self.rows * self.cols - self.num_mines)
        if not self.hidden_safe:
            return self.won(f"You revealed the last safe cell.\n{self._board()}", reward)
        return self._answer(f"You revealed ({row}, {col}).", reward)

    def _answer(self, feedback: str, reward: float = 0.0) -> StepResult:
        return self.carry_on(f"{feedback}\n{self._board()}", reward)

    def _lay_mines(self, first: int) -> None:
        around = _neighbours(self.rows, self.cols)
        near = around[first]
        order = [c for c in self.mine_order if c != first and c not in near]
        order += [c for c in self.mine_order if c in near]  # only if there is no other room
        mines = order[: self.num_mines]
        self.counts = [0] * (self.rows * self.cols)
        for mine in mines:
            for cell in around[mine]:
                self.counts[cell] += 1
        for mine in mines:
            self.counts[mine] = _MINE

    def _reveal(self, cell: int) -> int:
        """Reveal a cell and the unflagged cells around every 0; return how many were revealed."""
        around, shown, counts = _neighbours(self.rows, self.cols), self.shown, self.counts
        shown[cell] = str(counts[cell])
        queue, revealed = [cell], 1
        for at in queue:
            if counts[at]:
                continue
            for neighbour in around[at]:
                if shown[neighbour] == ".":
                    shown[neighbour] = str(counts[neighbour])
                    revealed += 1
                    queue.append(neighbour)
        return revealed

    def _board(self) -> str:
        shown, cols, labels = self.shown, self.cols, _labels(self.rows, self.cols)
        lines = [label + "  ".join(shown[start : start + cols]) for label, start in labels]
        return f"{_header(cols)}\n" + "\n".join(lines)

    def sample_action(self) -> str:
        hidden = [c for c, mark in enumerate(self.shown) if mark == "."]
        verb = "flag" if not hidden or self.action_rng.random() < 0.1 else "reveal"
        cell = self.action_rng.choice(
            hidden or [c for c, mark in enumerate(self.shown) if mark == "F"]
        )
        return f"{verb} {cell // self.cols} {cell % self.cols}"


@cache
def _neighbours(rows: int, cols: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(
            r * cols + c
            for r in range(max(0, row - 1), min(rows, row + 2))
            for c in range(max(0, col - 1), min(cols, col + 2))
            if (r, c) != (row, col)
        )
        for row in range(rows)
        for col in range(cols)
    )


@cache
def _labels(rows: int, cols: int) -> tuple[tuple[str, int], ...]:
    """Return the label and the first cell of each row."""
    return tuple((f"{row:2}  ", row * cols) for row in range(rows))


@cache
def _header(cols: int) -> str:
    return "   " + " ".join(f"{col:2}" for col in range(cols))
