"""Sokoban: push every box onto a target; boxes cannot be pulled."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game

__all__ = ["Sokoban"]

_RANDOM = (((6, 6), 2, 20), ((8, 8), 5, 50))
"""(dim_room, num_boxes, max_turns)"""
_BACK = {"up": "down", "down": "up", "left": "right", "right": "left"}
_WALL, _FLOOR, _TARGET, _BOX, _PLAYER = "#", "_", "O", "X", "P"
_BOX_ON_TARGET, _PLAYER_ON_TARGET = "√", "S"


class Sokoban(Game):
    """1 for all boxes on targets; at the last turn the part of the boxes that stand on one.

    A room is made by playing backwards: boxes start on the targets and are pulled away, by at most four fifths of `max_turns`
    player moves in all. Undoing these moves solves the room, so that every room is solvable in time, and making one takes
    milliseconds where the reference searches for seconds. No box stands on a target at the start.
    """

    action_example = "direction"

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        max_turns: int = 100,
        num_boxes: int = 3,
        randomize: bool = False,
    ) -> None:
        if isinstance(dim_room, str) or not isinstance(dim_room, Sequence) or len(dim_room) != 2:
            raise ConfigError(
                f"dim_room must be the two numbers of rows and columns, walls included; given: {dim_room!r}"
            )
        rows, cols = (whole_number("each number of dim_room", n, 5, 30) for n in dim_room)
        self.dim_room = (rows, cols)
        self.num_boxes = whole_number("num_boxes", num_boxes, 1, (rows - 2) * (cols - 2) // 5)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        if max_turns < 8 * num_boxes:
            raise ConfigError(
                f"{num_boxes} box(es) need at least {8 * num_boxes} turns; given: max_turns={max_turns}"
            )
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.dim_room, self.num_boxes, self.max_turns = self.rng.choice(_RANDOM)
        rows, cols = self.dim_room
        self.moves = {"up": -cols, "down": cols, "left": -1, "right": 1}
        room = _room(rows, cols, self.num_boxes, self.max_turns * 4 // 5, self.rng)
        self.fixed, self.player, boxes, self.solution = room
        self.cells = self.fixed.copy()
        for box in boxes:
            self.cells[box] = _BOX
        self.on_target = 0
        return (
            f"Sokoban: push every box ({self.num_boxes}) onto a target within {self.max_turns} moves. You move up, down, left or "
            "right; moving into a box pushes it one cell on, unless a wall or another box is behind it. Boxes cannot be pulled.\n"
            f"{_PLAYER} you, {_WALL} wall, {_FLOOR} floor, {_BOX} box, {_TARGET} target, {_BOX_ON_TARGET} box on a target, "
            f"{_PLAYER_ON_TARGET} you on a target.\n{self._board()}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        move = action.strip().lower()
        if move not in _BACK:
            return self.unreadable(action, "one of up, down, left and right")
        said = self._move(move)
        if self.on_target == self.num_boxes:
            return self.won(f"All boxes are on targets.\n{self._board()}")
        said = f"{said}\n{self._board()}"
        if self.turn + 1 < self.max_turns:
            return said, 0.0, False, False, {}
        return self.out_of_turns(said, self.on_target / self.num_boxes)

    def _move(self, move: str) -> str:
        step, cells = self.moves[move], self.cells
        to = self.player + step
        if cells[to] == _WALL:
            return f"There is a wall {_WHERE[move]}."
        if cells[to] not in (_BOX, _BOX_ON_TARGET):
            self.player = to
            return f"You moved {move}."
        behind = to + step
        if cells[behind] not in (_FLOOR, _TARGET):
            return f"The box {_WHERE[move]} cannot be pushed."
        self.on_target += (cells[behind] == _TARGET) - (cells[to] == _BOX_ON_TARGET)
        cells[behind] = _BOX_ON_TARGET if cells[behind] == _TARGET else _BOX
        cells[to] = self.fixed[to]
        self.player = to
        return f"You pushed a box {move}."

    def _board(self) -> str:
        cells, cols, player = self.cells, self.dim_room[1], self.player
        under = cells[player]
        cells[player] = _PLAYER_ON_TARGET if under == _TARGET else _PLAYER
        drawn = "\n".join(
            [" ".join(cells[start : start + cols]) for start in range(0, len(cells), cols)]
        )
        cells[player] = under
        return drawn

    def sample_action(self) -> str:
        return self.action_rng.choice(
            [move for move in self.moves if self._possible(self.moves[move])]
        )

    def _possible(self, step: int) -> bool:
        cell, behind = (
            self.cells[self.player + step],
            self.cells[min(self.player + 2 * step, len(self.cells) - 1)],
        )
        return cell in (_FLOOR, _TARGET) or (
            cell in (_BOX, _BOX_ON_TARGET) and behind in (_FLOOR, _TARGET)
        )


_WHERE = {"up": "above you", "down": "below you", "left": "on your left", "right": "on your right"}

Room = tuple[list[str], int, list[int], list[str]]
"""The walls, floor and targets; the player's cell; the boxes' cells; the moves that solve it."""


def _room(rows: int, cols: int, num_boxes: int, moves: int, rng: random.Random) -> Room:
    """Draws rooms until one can be played backwards far enough."""
    interior = (rows - 2) * (cols - 2)
    attempt = 0
    while True:
        attempt += 1
        # The more attempts failed, the more open the room, up to one without inner walls.
        open_cells = min(
            interior, max(6 * num_boxes, round(interior * rng.uniform(0.6, 0.8))) + attempt // 10
        )
        fixed = _carved(rows, cols, open_cells, rng)
        floor = [cell for cell, mark in enumerate(fixed) if mark == _FLOOR]
        targets = rng.sample(floor, num_boxes)
        played = _played_backwards(fixed, cols, targets, moves, rng)
        if played is not None:
            for target in targets:
                fixed[target] = _TARGET
            return (fixed, *played)


def _carved(rows: int, cols: int, open_cells: int, rng: random.Random) -> list[str]:
    """A room whose floor is one piece: a random walk that carves blocks of up to 2 x 2 cells."""
    cells = [_WALL] * (rows * cols)
    row, col = rng.randrange(1, rows - 1), rng.randrange(1, cols - 1)
    left = open_cells
    while True:
        for r in (row, row + 1):
            for c in (col, col + 1):
                if r < rows - 1 and c < cols - 1 and cells[r * cols + c] == _WALL:
                    cells[r * cols + c] = _FLOOR
                    left -= 1
        if left <= 0:
            return cells
        if rng.random() < 0.5:
            row = min(max(row + rng.choice((-1, 1)), 1), rows - 2)
        else:
            col = min(max(col + rng.choice((-1, 1)), 1), cols - 2)


def _played_backwards(
    fixed: list[str], cols: int, targets: list[int], moves: int, rng: random.Random
) -> tuple[int, list[int], list[str]] | None:
    """Pulls boxes off the targets; the player, the boxes and the way back at the last moment when no box was on a target."""
    steps = (("up", -cols), ("down", cols), ("left", -1), ("right", 1))
    boxes, on_target = targets.copy(), len(targets)
    player = rng.choice(
        [cell for cell, mark in enumerate(fixed) if mark == _FLOOR and cell not in targets]
    )
    walked: list[str] = []
    seen = {tuple(sorted(boxes))}
    best: tuple[int, list[int], list[str]] | None = None
    while True:
        free = [mark != _WALL for mark in fixed]
        for box in boxes:
            free[box] = False
        ways = _ways(free, player, steps, moves - len(walked) - 1)
        pulls = []
        weights = []
        for number, box in enumerate(boxes):
            for direction, step in steps:
                stand = box + step
                if stand in ways and free[stand + step]:
                    after = boxes.copy()
                    after[number] = stand
                    if tuple(sorted(after)) not in seen:
                        pulls.append((number, direction, step))
                        # A box still on a target comes first; a long walk leaves fewer moves for pulls.
                        weights.append((4.0 if box in targets else 1.0) / (1 + len(ways[stand])))
        if not pulls:
            return best
        number, direction, step = rng.choices(pulls, weights)[0]
        box = boxes[number]
        if walked:  # the way to the first pull would be a walk after the last push
            walked += ways[box + step]
        walked.append(direction)
        on_target += (box + step in targets) - (box in targets)
        boxes[number], player = box + step, box + 2 * step
        seen.add(tuple(sorted(boxes)))
        if not on_target:
            best = player, boxes.copy(), [_BACK[move] for move in reversed(walked)]


def _ways(
    free: list[bool], start: int, steps: Sequence[tuple[str, int]], longest: int
) -> dict[int, list[str]]:
    """The shortest way to each free cell the player can reach in at most `longest` moves."""
    ways: dict[int, list[str]] = {start: []}
    if longest < 0:
        return {}
    for at in (queue := [start]):
        way = ways[at]
        if len(way) == longest:
            break
        for direction, step in steps:
            to = at + step
            if free[to] and to not in ways:
                ways[to] = [*way, direction]
                queue.append(to)
    return ways
