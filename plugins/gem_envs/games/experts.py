"""Experts: scripted baseline players that solve a game, using its hidden state if needed.

An expert is a generator of the bare actions of one episode, started after `reset`. An environment
offers its expert as `expert()`.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from gem_core.env.base import Env

__all__ = ["EXPERTS", "expert_for"]

_BACK = {"up": "down", "down": "up", "left": "right", "right": "left"}


def guess_the_number(game: Any) -> Iterator[str]:
    """Bisect the range; name the number at the last turn."""
    low, high = game.min_number, game.max_number
    while True:
        guess = (low + high) // 2 if game.turn + 1 < game.max_turns else game.secret
        yield str(guess)
        low, high = (guess + 1, high) if game.secret > guess else (low, guess - 1)


def mastermind(game: Any) -> Iterator[str]:
    """Correct one place per guess, which earns every peg separately."""
    for known in range(1, game.code_length + 1):
        wrong = next(n for n in range(1, game.num_numbers + 1) if n != game.code[-1])
        yield " ".join(map(str, game.code[:known] + [wrong] * (game.code_length - known)))
    yield " ".join(map(str, game.code))


def minesweeper(game: Any) -> Iterator[str]:
    """Reveal only safe cells."""
    yield f"reveal {game.rows // 2} {game.cols // 2}"
    for cell, count in enumerate(game.counts):
        if count >= 0 and game.shown[cell] == ".":
            yield f"reveal {cell // game.cols} {cell % game.cols}"


def wordle(game: Any) -> Iterator[str]:
    yield "CRANE" if game.word_length == 5 else game.sample_action()
    yield game.secret


def fifteen_puzzle(game: Any) -> Iterator[str]:
    """Undo the scramble."""
    for move in reversed(game.scramble):
        yield _BACK[move]


def hangman(game: Any) -> Iterator[str]:
    """Guess half of the letters, then the word."""
    for letter in game.secret[: game.word_length // 2]:
        if letter not in game.tried:
            yield letter
    yield game.secret


def sudoku(game: Any) -> Iterator[str]:
    """Solve the visible board by backtracking, without reading the solution."""
    scale, box = game.scale, int(game.scale**0.5)
    solution = _solved(list(game.board), scale, box)
    for cell, digit in enumerate(solution):
        if not game.board[cell]:
            yield f"{cell // scale + 1} {cell % scale + 1} {digit}"


def _solved(board: list[int], scale: int, box: int) -> list[int]:
    def peers(cell: int) -> set[int]:
        row, col = divmod(cell, scale)
        return {
            c
            for c in range(scale * scale)
            if c // scale == row
            or c % scale == col
            or (c // scale // box == row // box and c % scale // box == col // box)
        }

    solutions: list[list[int]] = []

    def search() -> None:
        best: tuple[int, list[int]] | None = None
        for cell, digit in enumerate(board):
            if not digit:
                options = [d for d in range(1, scale + 1) if all(board[p] != d for p in near[cell])]
                if best is None or len(options) < len(best[1]):
                    best = (cell, options)
                    if len(options) < 2:
                        break
        if best is None:
            solutions.append(list(board))
            return
        for digit in best[1]:
            board[best[0]] = digit
            search()
            board[best[0]] = 0

    near = [peers(cell) for cell in range(scale * scale)]
    search()
    (solution,) = solutions  # a Sudoku has exactly one
    return solution


def tower_of_hanoi(game: Any) -> Iterator[str]:
    def carry(disks: int, source: str, target: str, other: str) -> Iterator[str]:
        if disks:
            yield from carry(disks - 1, source, other, target)
            yield f"{source} {target}"
            yield from carry(disks - 1, other, target, source)

    yield from carry(game.num_disks, "A", "C", "B")


def game_2048(game: Any) -> Iterator[str]:
    """Beam search with copies of the game and its random generator; play the best plan."""
    while True:
        beam: list[tuple[Any, tuple[str, ...]]] = [(_copy_of(game), ())]
        for _ in range(12):
            following: list[tuple[Any, tuple[str, ...]]] = []
            for board, plan in beam:
                for move in ("left", "down", "right", "up"):
                    after = _copy_of(board)
                    if after._slide(move):
                        if max(after.board) >= game.target_tile:
                            yield from (*plan, move)
                            return
                        after._add_tile()
                        following.append((after, (*plan, move)))
            if not following:
                break
            following.sort(key=lambda pair: _score(pair[0].board), reverse=True)
            beam = following[:6]
        yield from beam[0][1][:8]


def _copy_of(game: Any) -> Any:
    clone = copy.copy(game)
    clone.board = list(game.board)
    rng = random.Random()
    rng.setstate(game.rng.getstate())
    clone._rng = rng
    return clone


@cache
def _snake(size: int) -> list[int]:
    """Return the weights of the cells: they fall from the first cell along a snake."""
    rows = [range(size * row, size * (row + 1)) for row in reversed(range(size))]
    return [4**w for n, row in enumerate(rows) for w in (row if n % 2 else reversed(row))]


def _score(board: list[int]) -> float:
    weights = _snake(math.isqrt(len(board)))
    return sum(tile * weight for tile, weight in zip(board, weights, strict=True)) * (
        1 + 0.05 * board.count(0)
    )


def sokoban(game: Any) -> Iterator[str]:
    yield from game.solution


def crosswords(game: Any) -> Iterator[str]:
    for (row, col), letter in game.solution.items():
        yield f"{row} {col} {letter.lower()}"


def word_search(game: Any) -> Iterator[str]:
    for number, cells in enumerate(game.placed.values()):
        first, last = (cells[0], cells[-1]) if number % 2 else (cells[-1], cells[0])
        yield " ".join(str(n) for cell in (first, last) for n in divmod(cell, game.size))


EXPERTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "GuessTheNumber": guess_the_number,
    "Mastermind": mastermind,
    "Minesweeper": minesweeper,
    "Wordle": wordle,
    "FifteenPuzzle": fifteen_puzzle,
    "Hangman": hangman,
    "Sudoku": sudoku,
    "TowerOfHanoi": tower_of_hanoi,
    "Game2048": game_2048,
    "Sokoban": sokoban,
    "Crosswords": crosswords,
    "WordSearch": word_search,
}
"""Experts by the class name of the environment."""


def expert_for(game: Env) -> Callable[[], Iterator[str]] | None:
    """Return the expert of a game, or of the gem game it subclasses; None if there is none."""
    for kind in type(game).__mro__:
        if kind.__name__ in EXPERTS and kind.__module__.startswith("gem_envs.games."):
            return partial(EXPERTS[kind.__name__], game)
    return None
