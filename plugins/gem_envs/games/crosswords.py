"""Crosswords: fill in crossing words letter by letter from their clues."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws
from gem_envs.games.words import read_data

__all__ = ["Crosswords"]

_TURNS_PER_WORD = 6
"""Minimum turns per word; enough words have at most 6 letters to build any such puzzle."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A word with its clue and position."""

    word: str
    clue: str
    row: int
    col: int
    across: bool

    def cells(self) -> list[tuple[int, int]]:
        """Return the (row, column) of each letter."""
        return [
            (self.row, self.col + i) if self.across else (self.row + i, self.col)
            for i in range(len(self.word))
        ]


class Crosswords(Game):
    """Crossword: 1 / number of letters for each correct letter; a wrong letter costs the turn.

    Every puzzle has at most `max_turns` letters. Each word crosses another word and touches no
    other. `hardcore` draws less common words. The reference's random variant does not run and
    would have 20 turns; here `randomize` draws the easy or the hard variant, with its turns.
    """

    action_example = "row column letter"

    @draws("hardcore", "max_turns", "num_words")
    def __init__(
        self,
        hardcore: bool = False,
        max_turns: int = 100,
        num_words: int = 5,
        randomize: bool = False,
    ) -> None:
        self.hardcore = hardcore
        self.num_words = whole_number("num_words", num_words, 1, 15)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if max_turns < _TURNS_PER_WORD * num_words:
            minimum = _TURNS_PER_WORD * num_words
            raise ConfigError(
                f"{num_words} words need max_turns of at least {minimum}, got {max_turns}"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.hardcore = self.rng.random() < 0.5
            self.num_words, self.max_turns = 3, 40 if self.hardcore else 30
        self.entries = _layout(_clues(self.hardcore), self.num_words, self.max_turns, self.rng)
        self.solution = {
            cell: letter
            for e in self.entries
            for cell, letter in zip(e.cells(), e.word, strict=True)
        }
        self.rows, self.cols = (1 + max(cell[axis] for cell in self.solution) for axis in (0, 1))
        self.board = [
            ["_" if (r, c) in self.solution else "." for c in range(self.cols)]
            for r in range(self.rows)
        ]
        self.lines = [self._line(row) for row in range(self.rows)]
        self.remaining = len(self.solution)
        clues = [
            f"{number}. {'across' if e.across else 'down'} from row {e.row}, column {e.col}, "
            f"{len(e.word)} letters: {e.clue}"
            for number, e in enumerate(self.entries, 1)
        ]
        return (
            f"Crossword: fill the cells marked '_' of this grid within {self.max_turns} turns; "
            "'.' is no part of it. Give one letter a turn, as 'row column letter', "
            "with rows and columns counted from 0; a wrong letter is refused.\n"
            + "\n".join(clues)
            + f"\n{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        words = action.split()
        if (
            len(words) != 3
            or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words[:2])
            or not (len(words[2]) == 1 and words[2].isascii() and words[2].isalpha())
        ):
            return self.unreadable(action, "of the form 'row column letter'")
        row, col, letter = int(words[0]), int(words[1]), words[2].upper()
        expected = self.solution.get((row, col))
        if expected is None:
            return self._answer(f"({row}, {col}) is not one of the cells to fill.")
        if self.board[row][col] != "_":
            return self._answer(f"({row}, {col}) is filled already.")
        if letter != expected:
            return self._answer(f"{letter} at ({row}, {col}) is wrong.")
        self.board[row][col] = letter
        self.lines[row] = self._line(row)
        self.remaining -= 1
        if not self.remaining:
            return self.won(f"The crossword is complete.\n{self._board()}", 1 / len(self.solution))
        return self._answer(f"{letter} at ({row}, {col}) is right.", 1 / len(self.solution))

    def _answer(self, feedback: str, reward: float = 0.0) -> StepResult:
        return self.carry_on(f"{feedback}\n{self._board()}", reward)

    def _line(self, row: int) -> str:
        return f"{row:2}  " + "  ".join(self.board[row])

    def _board(self) -> str:
        return _header(self.cols) + "\n" + "\n".join(self.lines)

    def sample_action(self) -> str:
        row, col = self.action_rng.choice(
            [cell for cell in self.solution if self.board[cell[0]][cell[1]] == "_"]
        )
        return f"{row} {col} {self.action_rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}"


@cache
def _header(cols: int) -> str:
    return "   " + " ".join(f"{col:2}" for col in range(cols))


@cache
def _clues(hardcore: bool) -> tuple[tuple[str, str], ...]:
    """Read the (word, clue) pairs from a file with lines of the form `word: clue`."""
    lines = read_data("clues_more.txt" if hardcore else "clues_common.txt").splitlines()
    pairs = (line.split(": ", 1) for line in lines if line)
    return tuple((word.upper(), clue) for word, clue in pairs)


def _layout(
    pool: tuple[tuple[str, str], ...], num_words: int, max_cells: int, rng: random.Random
) -> list[Entry]:
    """Draw words and cross each with a placed one; start over when no word fits."""
    while True:
        entries: list[Entry] = []
        letters: dict[tuple[int, int], str] = {}
        for _ in range(20 * num_words):
            word, clue = rng.choice(pool)
            reserved = _TURNS_PER_WORD * (num_words - len(entries) - 1)
            is_too_long = len(letters) + len(word) + reserved > max_cells
            if is_too_long or any(e.word == word for e in entries):
                continue
            places = _crossings(word, entries, letters) if entries else [(0, 0, rng.random() < 0.5)]
            if not places:
                continue
            entry = Entry(word, clue, *rng.choice(places))
            entries.append(entry)
            letters.update(zip(entry.cells(), word, strict=True))
            if len(entries) == num_words:
                return _moved_to_origin(entries)


def _crossings(
    word: str, entries: list[Entry], letters: dict[tuple[int, int], str]
) -> list[tuple[int, int, bool]]:
    """Return every (row, column, across) where a word crosses a placed one and touches no other."""
    places = []
    for entry in entries:
        for i, letter in enumerate(word):
            for j, crossed in enumerate(entry.word):
                if letter == crossed:
                    if entry.across:
                        place = (entry.row - i, entry.col + j, False)
                    else:
                        place = (entry.row + j, entry.col - i, True)
                    if _fits(word, *place, letters):
                        places.append(place)
    return places


def _fits(word: str, row: int, col: int, across: bool, letters: dict[tuple[int, int], str]) -> bool:
    down, right = (0, 1) if across else (1, 0)
    before = (row - down, col - right)
    after = (row + down * len(word), col + right * len(word))
    if before in letters or after in letters:
        return False
    for i, letter in enumerate(word):
        r, c = row + down * i, col + right * i
        placed = letters.get((r, c))
        if placed is None:
            if (r + right, c + down) in letters or (r - right, c - down) in letters:
                return False
        elif placed != letter:
            return False
    return True


def _moved_to_origin(entries: list[Entry]) -> list[Entry]:
    top, left = min(e.row for e in entries), min(e.col for e in entries)
    return [Entry(e.word, e.clue, e.row - top, e.col - left, e.across) for e in entries]
