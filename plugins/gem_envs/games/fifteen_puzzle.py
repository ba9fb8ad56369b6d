"""FifteenPuzzle: slide the tiles of a square board into order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_envs.games.base import Game, draws

__all__ = ["FifteenPuzzle"]

_RANDOM = ((2, 10), (3, 20), (4, 50))
"""(num_rows, max_turns)"""
_BACK = {"up": "down", "down": "up", "left": "right", "right": "left"}


class FifteenPuzzle(Game):
    """Fifteen puzzle: a reward of 1 for the solved board.

    At the last turn an unsolved board gives the fraction of misplaced tiles that are now in place,
    at least 0. The reference shuffles the tiles: half of its boards are unsolvable, and a 4 x 4
    board may need 80 moves. Here a random walk of at most `max_turns` moves scrambles the solved
    board, so undoing the walk solves it in time.
    """

    action_example = "direction"

    @draws("num_rows", "max_turns")
    def __init__(self, num_rows: int = 2, max_turns: int = 20, randomize: bool = False) -> None:
        self.num_rows = whole_number("num_rows", num_rows, 2, 10)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.num_rows, self.max_turns = self.rng.choice(_RANDOM)
        size = self.num_rows**2
        self.solved = [*range(1, size), 0]
        self.board = self.solved
        while self.board == self.solved:
            self._scramble()
        self.initially_in_place = self._in_place()
        return (
            f"Slide the tiles of this {self.num_rows} x {self.num_rows} board into order: "
            f"1 to {size - 1} row by row, the empty place (__) at the bottom right. "
            f"You have {self.max_turns} moves. "
            "A move names the direction in which a tile slides into the empty place: "
            "'up' moves the tile below it, 'down' the tile above it, "
            "'left' the tile on its right, 'right' the tile on its left.\n"
            f"{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        move = action.strip().lower()
        if move not in _BACK:
            return self.unreadable(action, "one of up, down, left and right")
        if not self._slide(move):
            feedback = f"No tile can move {move}."
        elif self.empty == len(self.board) - 1 and self.board == self.solved:
            return self.won(f"Solved.\n{self._board()}")
        else:
            feedback = f"You moved a tile {move}."
        feedback = f"{feedback}\n{self._board()}"
        if self.turn + 1 < self.max_turns:
            return feedback, 0.0, False, False, {}
        gained = self._in_place() - self.initially_in_place
        possible = len(self.board) - self.initially_in_place
        return self.out_of_turns(feedback, max(0.0, gained / possible))

    def _in_place(self) -> int:
        return sum(map(int.__eq__, self.board, self.solved))

    def _scramble(self) -> None:
        """Walk from the solved board without turning back, for at least half of the turns."""
        self.board = self.solved.copy()
        self.empty = len(self.board) - 1
        self.scramble: list[str] = []
        for _ in range(self.rng.randint((self.max_turns + 1) // 2, self.max_turns)):
            moves = self._moves()
            if self.scramble:
                moves.remove(_BACK[self.scramble[-1]])
            move = moves[self.rng.randrange(len(moves))]
            self._slide(move)
            self.scramble.append(move)

    def _moves(self) -> list[str]:
        row, col = divmod(self.empty, self.num_rows)
        last = self.num_rows - 1
        moves = (("up", row < last), ("down", row > 0), ("left", col < last), ("right", col > 0))
        return [move for move, is_possible in moves if is_possible]

    def _slide(self, move: str) -> bool:
        size, empty = self.num_rows, self.empty
        if move == "up":
            tile = empty + size
            possible = tile < size * size
        elif move == "down":
            tile = empty - size
            possible = tile >= 0
        elif move == "left":
            tile = empty + 1
            possible = tile % size != 0
        else:
            tile = empty - 1
            possible = empty % size != 0
        if possible:
            self.board[empty], self.board[tile] = self.board[tile], 0
            self.empty = tile
        return possible

    def _board(self) -> str:
        cells = [_CELL[tile] for tile in self.board]
        size = self.num_rows
        return "\n".join(
            [" ".join(cells[start : start + size]) for start in range(0, size * size, size)]
        )

    def sample_action(self) -> str:
        return self.action_rng.choice(self._moves())


_CELL = ("__", *(f"{tile:2}" for tile in range(1, 100)))
