"""WordSearch: find words hidden across and down in a grid of letters."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws
from gem_envs.games.words import LONGEST, SHORTEST, common_words, more_words

__all__ = ["WordSearch"]

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class WordSearch(Game):
    """Word search: a reward of 1 / number of words for each word, once.

    A line is the same line in both directions. `hardcore` hides less common words.
    """

    action_example = "row column row column"

    @draws("hardcore", "max_turns", "num_words")
    def __init__(
        self,
        hardcore: bool = False,
        max_turns: int = 20,
        num_words: int = 5,
        randomize: bool = False,
    ) -> None:
        self.hardcore = hardcore
        self.num_words = whole_number("num_words", num_words, 1, 12)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if max_turns < num_words:
            raise ConfigError(
                f"{num_words} words need max_turns of at least {num_words}, got {max_turns}"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.hardcore = self.rng.random() < 0.5
            self.num_words, self.max_turns = 5, 20
        self.placed = _placement(self._draw_words(), self.rng)
        self.size = _size(list(self.placed))
        self.grid = self.rng.choices(_ALPHABET, k=self.size * self.size)
        for word, cells in self.placed.items():
            for cell, letter in zip(cells, word, strict=True):
                self.grid[cell] = letter
        self.found: list[str] = []
        self.tried: set[tuple[int, int]] = set()
        """First and last cell of each tried line, in ascending order."""
        self.marked = [False] * len(self.grid)
        self.lines = [self._line(row) for row in range(self.size)]
        lengths = ", ".join(str(len(word)) for word in self.placed)
        return (
            f"Word search: {self.num_words} English words are hidden in this grid, "
            "across (left to right) or down (top to bottom); "
            f"their lengths are {lengths}. "
            "Name a word by the row and column of its first letter "
            "and the row and column of its last letter, counted from 0. "
            f"You have {self.max_turns} turns; letters of found words stand in [ ].\n"
            f"{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        words = action.split()
        if len(words) != 4 or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
            return self.unreadable(action, "of the form 'row column row column'")
        row, col, last_row, last_col = map(int, words)
        if max(row, col, last_row, last_col) >= self.size:
            return self._answer(f"Rows and columns go from 0 to {self.size - 1}.")
        if row != last_row and col != last_col:
            return self._answer("A word stands in one row or in one column.")
        ends = sorted((row * self.size + col, last_row * self.size + last_col))
        line = (ends[0], ends[1])
        if line in self.tried:
            return self._answer("That line was tried before.")
        self.tried.add(line)
        cells = range(line[0], line[1] + 1, 1 if row == last_row else self.size)
        word = "".join([self.grid[cell] for cell in cells])
        if word not in self.placed or word in self.found:
            return self._answer(f"{word} is none of the words left.")
        self.found.append(word)
        for cell in cells:
            self.marked[cell] = True
        for at in {cell // self.size for cell in cells}:
            self.lines[at] = self._line(at)
        if len(self.found) == self.num_words:
            return self.won(
                f"You found {word}, the last word.\n{self._board()}", 1 / self.num_words
            )
        return self._answer(f"You found {word}.", 1 / self.num_words)

    def _draw_words(self) -> list[str]:
        """Draw different words and sort them by length: long words must be placed first."""
        words: list[str] = []
        source = more_words if self.hardcore else common_words
        while len(words) < self.num_words:
            word = self.rng.choice(source(self.rng.randint(SHORTEST, LONGEST)))
            if word not in words:
                words.append(word)
        return sorted(words, key=len, reverse=True)

    def _answer(self, feedback: str, reward: float = 0.0) -> StepResult:
        progress = f"{len(self.found)} of {self.num_words} words are found."
        return self.carry_on(f"{feedback} {progress}\n{self._board()}", reward)

    def _line(self, row: int) -> str:
        cells = range(row * self.size, (row + 1) * self.size)
        drawn = "".join(
            [f"[{self.grid[c]}]" if self.marked[c] else f" {self.grid[c]} " for c in cells]
        )
        return f"{row:2} {drawn}".rstrip()

    def _board(self) -> str:
        return _header(self.size) + "\n" + "\n".join(self.lines)

    def sample_action(self) -> str:
        size, rng = self.size, self.action_rng
        for _ in range(100):
            first, last = sorted(rng.sample(range(size), 2))
            across = rng.random() < 0.5
            at = rng.randrange(size)
            row, col, last_row, last_col = (
                (at, first, at, last) if across else (first, at, last, at)
            )
            if (row * size + col, last_row * size + last_col) not in self.tried:
                break
        return f"{row} {col} {last_row} {last_col}"


@cache
def _header(size: int) -> str:
    return "   " + " ".join(f"{col:2}" for col in range(size))


def _size(words: list[str]) -> int:
    """Return the grid size: 1.5 times the longest word, and at least the word count plus 2."""
    return max(round(1.5 * max(map(len, words))), len(words) + 2)


def _placement(words: list[str], rng: random.Random) -> dict[str, range]:
    """Draw cells for each word; words may share equal letters. Start over if one does not fit."""
    size = _size(words)
    while True:
        letters: dict[int, str] = {}
        placed: dict[str, range] = {}
        for word in words:
            for _ in range(50):
                along, aside = rng.randrange(size - len(word) + 1), rng.randrange(size)
                across = rng.random() < 0.5
                start, step = (aside * size + along, 1) if across else (along * size + aside, size)
                cells = range(start, start + step * len(word), step)
                if all(
                    letters.get(cell, letter) == letter
                    for cell, letter in zip(cells, word, strict=True)
                ):
                    letters.update(zip(cells, word, strict=True))
                    placed[word] = cells
                    break
        if len(placed) == len(words):
            return placed
