"""Sudoku: fill a grid with every digit once in each row, column and box."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws

__all__ = ["Sudoku"]

_RANDOM = ((4, 10, 15), (9, 50, 50))
"""(scale, clues, max_turns)"""


class Sudoku(Game):
    """Sudoku: a reward of 1 / empty cells for each correct digit; a wrong digit costs the turn.

    `clues` is the maximum number of empty cells; the reference uses the same, misleading name. A
    cell is not emptied if the puzzle would then have a second solution.
    """

    action_example = "row column digit"

    @draws("clues", "max_turns", "scale")
    def __init__(
        self, clues: int = 30, max_turns: int = 100, scale: int = 9, randomize: bool = False
    ) -> None:
        if scale not in (4, 9) or isinstance(scale, bool):
            raise ConfigError(f"scale must be 4 or 9, got {scale!r}")
        self.scale = scale
        self.clues = whole_number("clues", clues, 1, scale * scale)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if max_turns < clues:
            raise ConfigError(
                f"{clues} empty cells (clues) need max_turns of at least {clues}, got {max_turns}"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.scale, self.clues, self.max_turns = self.rng.choice(_RANDOM)
        scale, box = self.scale, 2 if self.scale == 4 else 3
        self.solution = _full_grid(scale, self.rng)
        self.board = _emptied(self.solution, scale, self.clues, self.rng)
        self.empties = self.remaining = self.board.count(0)
        self.lines = [self._line(row) for row in range(scale)]
        return (
            f"Sudoku: fill the empty cells ('.') of this {scale} x {scale} grid "
            f"with digits from 1 to {scale}, so that each row, each column "
            f"and each of the {scale} boxes of {box} x {box} cells holds every digit once. "
            "There is one solution. Fill one cell a turn, as 'row column digit', "
            f"with rows and columns from 1 to {scale}; "
            "a digit that does not belong there is refused. "
            f"You have {self.max_turns} turns.\n"
            f"{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        words = action.split()
        if len(words) != 3 or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
            return self.unreadable(action, "of the form 'row column digit'")
        row, col, digit = map(int, words)
        scale = self.scale
        if not (1 <= row <= scale and 1 <= col <= scale and 1 <= digit <= scale):
            return self._answer(f"Rows, columns and digits go from 1 to {scale}.")
        cell = (row - 1) * scale + col - 1
        if self.board[cell]:
            return self._answer(f"Row {row}, column {col} is filled already.")
        if self.solution[cell] != digit:
            return self._answer(f"{digit} does not belong at row {row}, column {col}.")
        self.board[cell] = digit
        self.lines[row - 1] = self._line(row - 1)
        self.remaining -= 1
        if not self.remaining:
            return self.won(f"Solved.\n{self._board()}", 1 / self.empties)
        return self._answer(f"You placed {digit} at row {row}, column {col}.", 1 / self.empties)

    def _answer(self, feedback: str, reward: float = 0.0) -> StepResult:
        return self.carry_on(f"{feedback}\n{self._board()}", reward)

    def _line(self, row: int) -> str:
        box = 2 if self.scale == 4 else 3
        cells = [
            str(digit) if digit else "."
            for digit in self.board[row * self.scale : (row + 1) * self.scale]
        ]
        return f"R{row + 1}  " + " | ".join(
            "  ".join(cells[start : start + box]) for start in range(0, self.scale, box)
        )

    def _board(self) -> str:
        return _header(self.scale) + "\n" + "\n".join(self.lines)

    def sample_action(self) -> str:
        cell = self.action_rng.choice([c for c, digit in enumerate(self.board) if not digit])
        row, col = divmod(cell, self.scale)
        return f"{row + 1} {col + 1} {self.action_rng.randint(1, self.scale)}"


@cache
def _header(scale: int) -> str:
    box = 2 if scale == 4 else 3
    groups = [
        " ".join(f"C{col + 1}" for col in range(start, start + box))
        for start in range(0, scale, box)
    ]
    return "   " + "  ".join(groups)


@cache
def _houses(scale: int) -> tuple[tuple[int, int, int], ...]:
    """Return the row, column and box of each cell, with indices unique over all three kinds."""
    box = 2 if scale == 4 else 3
    return tuple(
        (row, scale + col, 2 * scale + row // box * box + col // box)
        for row in range(scale)
        for col in range(scale)
    )


class _Search:
    """Backtracking search over a partly filled grid.

    `free` has a bit mask of the free digits for each row, column and box.
    """

    def __init__(self, grid: list[int], scale: int) -> None:
        self.grid, self.scale, self.houses = grid, scale, _houses(scale)
        self.free = [(1 << scale) - 1] * (3 * scale)
        for cell, digit in enumerate(grid):
            if digit:
                self.flip(cell, 1 << (digit - 1))

    def flip(self, cell: int, bit: int) -> None:
        """Toggle a digit in the free masks of a cell's row, column and box."""
        row, col, box = self.houses[cell]
        self.free[row] ^= bit
        self.free[col] ^= bit
        self.free[box] ^= bit

    def candidates(self, cell: int) -> int:
        """Return the digits allowed in a cell, as bits."""
        row, col, box = self.houses[cell]
        return self.free[row] & self.free[col] & self.free[box]

    def solve(self, empty: list[int], rng: random.Random | None = None) -> bool:
        """Fill the empty cells, fewest candidates first; return False, unchanged, if impossible."""
        if not empty:
            return True
        best, fewest, place = 0, 99, 0
        free, houses = self.free, self.houses
        for at, cell in enumerate(empty):
            row, col, box = houses[cell]
            bits = free[row] & free[col] & free[box]
            count = _COUNT[bits]
            if count < fewest:
                best, fewest, place = bits, count, at
                if count < 2:
                    break
        cell = empty[place]
        rest = empty[:place] + empty[place + 1 :]
        options = [digit for digit in range(self.scale) if best >> digit & 1]
        if rng is not None:
            rng.shuffle(options)
        for digit in options:
            bit = 1 << digit
            self.flip(cell, bit)
            if self.solve(rest, rng):
                self.grid[cell] = digit + 1
                return True
            self.flip(cell, bit)
        return False


_COUNT = [bin(bits).count("1") for bits in range(512)]


def _full_grid(scale: int, rng: random.Random) -> list[int]:
    grid = [0] * (scale * scale)
    _Search(grid, scale).solve(list(range(scale * scale)), rng)
    return grid


def _emptied(solution: list[int], scale: int, count: int, rng: random.Random) -> list[int]:
    """Empty up to `count` cells in random order, keeping the solution unique."""
    board = solution.copy()
    empty: list[int] = []
    for cell in rng.sample(range(scale * scale), scale * scale):
        if len(empty) == count:
            break
        digit, board[cell] = board[cell], 0
        if _has_other_solution(board, scale, cell, digit, empty):
            board[cell] = digit
        else:
            empty.append(cell)
    return board


def _has_other_solution(
    board: list[int], scale: int, cell: int, digit: int, empty: list[int]
) -> bool:
    search = _Search(board.copy(), scale)
    others = search.candidates(cell) & ~(1 << (digit - 1))
    for other in range(scale):
        bit = 1 << other
        if others & bit:
            search.flip(cell, bit)
            if search.solve(empty):
                return True
            search.flip(cell, bit)
    return False
