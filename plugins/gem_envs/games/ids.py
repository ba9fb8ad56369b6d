"""Environment ids of the games, with the names and parameters of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["register_games"]

_BOXED = (("boxed", {"place": "observation"}),)


class _Game(NamedTuple):
    """One game with the parameters of its variants."""

    name: str
    entry_point: str
    summary: str
    reward: str
    data: str
    variants: dict[str, dict[str, Any]]


_RANDOM: dict[str, Any] = {"randomize": True}
_GAMES = (
    _Game(
        "GuessTheNumber",
        "guess_the_number:GuessTheNumber",
        "find a hidden number from higher and lower hints",
        "terminal: 1 for the number",
        "synthetic",
        {
            "": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-easy": {"min_number": 1, "max_number": 10, "max_turns": 4},
            "-hard": {"min_number": 1, "max_number": 50, "max_turns": 7},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Mastermind",
        "mastermind:Mastermind",
        "find a hidden code from black and white pegs",
        "dense: each new best count of black pegs / length, sum 1",
        "synthetic",
        {
            "": {"code_length": 4, "num_numbers": 6, "max_turns": 20},
            "-easy": {"code_length": 2, "num_numbers": 6, "max_turns": 10},
            "-hard": {"code_length": 4, "num_numbers": 8, "max_turns": 30},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Minesweeper",
        "minesweeper:Minesweeper",
        "reveal every cell without a mine",
        "dense: cells revealed / safe cells, sum 1",
        "synthetic",
        {
            "": {"rows": 8, "cols": 8, "num_mines": 10, "max_turns": 64},
            "-easy": {"rows": 5, "cols": 5, "num_mines": 5, "max_turns": 25},
            "-hard": {"rows": 8, "cols": 8, "num_mines": 12, "max_turns": 64},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Wordle",
        "wordle:Wordle",
        "find a hidden word from green and yellow letters",
        "dense: 0.5 * new green places / length, 0.5 for the word, sum 1",
        "shipped word list",
        {
            "": {"word_length": 5, "max_turns": 20},
            "-easy": {"word_length": 3, "max_turns": 15},
            "-hard": {"word_length": 5, "max_turns": 25},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "FifteenPuzzle",
        "fifteen_puzzle:FifteenPuzzle",
        "slide the tiles of a square board into order",
        "terminal: 1 when solved, at the last turn the fraction of misplaced tiles put in place",
        "synthetic",
        {
            "": {"num_rows": 2, "max_turns": 20},
            "-easy": {"num_rows": 2, "max_turns": 10},
            "-hard": {"num_rows": 4, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Hangman",
        "hangman:Hangman",
        "find a hidden word letter by letter",
        "dense: 0.5 * places revealed / length, 0.5 for the word, sum 1",
        "shipped word list",
        {
            "": {"word_length": 5, "max_turns": 20},
            "-easy": {"word_length": 3, "max_turns": 10},
            "-hard": {"word_length": 7, "max_turns": 20},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Sudoku",
        "sudoku:Sudoku",
        "fill a grid with every digit once in each row, column and box",
        "dense: 1 / empty cells for each right digit, sum 1",
        "synthetic",
        {
            "": {"scale": 9, "clues": 30, "max_turns": 100},
            "-easy": {"scale": 4, "clues": 10, "max_turns": 15},
            "-hard": {"scale": 9, "clues": 50, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "TowerofHanoi",
        "tower_of_hanoi:TowerOfHanoi",
        "move a tower of disks to another peg",
        "terminal: 1 when solved, at the last turn the fraction of disks on C",
        "synthetic",
        {
            "": {"num_disks": 3, "max_turns": 10},
            "-easy": {"num_disks": 3, "max_turns": 10},
            "-hard": {"num_disks": 5, "max_turns": 35},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Game2048",
        "game_2048:Game2048",
        "slide and merge tiles until one reaches the target",
        "dense: doublings of the largest tile / doublings to the target, sum 1",
        "synthetic",
        {
            "": {"target_tile": 2048, "max_turns": 1400},
            "-easy": {"target_tile": 64, "max_turns": 50},
            "-hard": {"target_tile": 512, "max_turns": 350},
            "-extreme-hard": {"target_tile": 2048, "max_turns": 1400},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Sokoban",
        "sokoban:Sokoban",
        "push every box onto a target",
        "terminal: 1 when solved, at the last turn the fraction of boxes on targets",
        "synthetic",
        {
            "": {"dim_room": (6, 6), "num_boxes": 3, "max_turns": 100},
            "-easy": {"dim_room": (6, 6), "num_boxes": 2, "max_turns": 20},
            "-hard": {"dim_room": (8, 8), "num_boxes": 4, "max_turns": 50},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "Crosswords",
        "crosswords:Crosswords",
        "fill crossing words letter by letter from their clues",
        "dense: 1 / letters for each right letter, sum 1",
        "shipped clues",
        {
            "": {"num_words": 5, "max_turns": 100},
            "-easy": {"num_words": 3, "max_turns": 30},
            "-hard": {"num_words": 3, "max_turns": 40, "hardcore": True},
            "-random": _RANDOM,
        },
    ),
    _Game(
        "WordSearch",
        "word_search:WordSearch",
        "find words hidden in a grid of letters",
        "dense: 1 / words for each word, sum 1",
        "shipped word list",
        {
            "": {"num_words": 5, "max_turns": 20},
            "-easy": {"num_words": 5, "max_turns": 20},
            "-hard": {"num_words": 5, "max_turns": 20, "hardcore": True},
            "-random": _RANDOM,
        },
    ),
)


def register_games(register: Callable[..., Any]) -> None:
    """Register every game and variant."""
    for game in _GAMES:
        for variant, kwargs in game.variants.items():
            register(
                f"game:{game.name}-v0{variant}",
                f"gem_envs.games.{game.entry_point}",
                kwargs=kwargs,
                wrappers=_BOXED,
                summary=game.summary,
                turns=kwargs.get("max_turns"),
                reward=game.reward,
                data=game.data,
                tags=("game",),
            )
