"""Maze: walk to a goal, seeing only the walls next to you, as in AgentGym's MAZE (LMRL-Gym)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game

__all__ = ["Maze"]

Cell = tuple[int, int]

_MOVES = {"move up": (-1, 0), "move down": (1, 0), "move left": (0, -1), "move right": (0, 1)}
_SIDES = {
    "to your right": (0, 1),
    "to your left": (0, -1),
    "above you": (-1, 0),
    "below you": (1, 0),
}
_DOUBLE_T = """
#############
#.....#.....#
###.#####.###
###.#####.###
###.#####.###
###.......###
######.######
######.######
######.######
#############
"""
_DOUBLE_T_GOAL = (8, 6)


class Maze(Game):
    """A maze of cells; the reward is 1 for the goal.

    `layout` is `double_t`, AgentGym's only maze, with a random start, or `random`: a maze of
    `size` by `size` cells that the seed draws. `show_position=False` hides the coordinates.
    A random start is at least a third of the longest way from the goal.
    """

    action_example = "move up"

    def __init__(
        self,
        layout: str = "random",
        size: int = 11,
        show_position: bool = True,
        max_turns: int = 60,
    ) -> None:
        if layout not in ("double_t", "random"):
            raise ConfigError(f"layout must be 'double_t' or 'random', got {layout!r}")
        self.layout = layout
        self.size = whole_number("size", size, 5)
        if not self.size % 2:
            raise ConfigError(f"size must be odd (walls are cells too), got {size}")
        self.show_position = show_position
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.layout == "double_t":
            rows = _DOUBLE_T.split()
            self.open = {
                (r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark == "."
            }
            self.goal = _DOUBLE_T_GOAL
        else:
            self.open = _random_maze(self.size, self.rng)
            self.goal = self.rng.choice(sorted(self.open))
        self.distance = self._distances()
        least = max(1, max(self.distance.values()) // 3) if self.layout == "random" else 1
        self.position = self.rng.choice(
            sorted(cell for cell, far in self.distance.items() if far >= least)
        )
        axes = (
            "Moving right adds 1 to the second coordinate; moving down adds 1 to the first. "
            if self.show_position
            else ""
        )
        return (
            "Walk through a maze to the goal, in as few steps as possible. "
            f"{axes}A move into a wall leaves you where you are. "
            'The actions are "move up", "move down", "move left" and "move right". '
            f"You have {self.max_turns} turns.\n\n{self._view()}",
            {"distance": self.distance[self.position]},
        )

    def on_step(self, action: str) -> StepResult:
        move = _MOVES.get(" ".join(action.lower().split()).strip("\"'."))
        if move is None:
            return self.carry_on(f"That is not one of the four moves.\n{self._view()}")
        target = (self.position[0] + move[0], self.position[1] + move[1])
        if target in self.open:
            self.position = target
        if self.position == self.goal:
            return self.won("Success")
        return self.carry_on(self._view())

    def _view(self) -> str:
        walls = [side for side, move in _SIDES.items() if self._neighbour(move) not in self.open]
        text = ""
        if self.show_position:
            (goal_row, goal_col), (row, col) = self.goal, self.position
            text = f"The goal is at position {goal_row}, {goal_col}. "
            text += f"Your current position is at position {row}, {col}. "
        if not walls:
            return f"{text}There are no walls next to you."
        return f"{text}There {'is a wall' if len(walls) == 1 else 'are walls'} {', '.join(walls)}."

    def _neighbour(self, move: Cell) -> Cell:
        return self.position[0] + move[0], self.position[1] + move[1]

    def _distances(self) -> dict[Cell, int]:
        """Return the number of steps from every cell to the goal."""
        far, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            row, col = queue.popleft()
            for d_row, d_col in _MOVES.values():
                cell = (row + d_row, col + d_col)
                if cell in self.open and cell not in far:
                    far[cell] = far[row, col] + 1
                    queue.append(cell)
        return far

    def sample_action(self) -> str:
        return self.action_rng.choice(list(_MOVES))

    def expert(self) -> Iterator[str]:
        """Walk a shortest path."""
        while True:
            yield min(
                _MOVES, key=lambda name: self.distance.get(self._neighbour(_MOVES[name]), 10**6)
            )


def _random_maze(size: int, rng: random.Random) -> set[Cell]:
    """Carve a maze without loops, depth first, then open a few walls so that ways differ."""
    opened, stack = {(1, 1)}, [(1, 1)]
    while stack:
        row, col = stack[-1]
        ways = [
            (row + d_row, col + d_col, row + 2 * d_row, col + 2 * d_col)
            for d_row, d_col in _MOVES.values()
            if 0 < row + 2 * d_row < size - 1
            and 0 < col + 2 * d_col < size - 1
            and (row + 2 * d_row, col + 2 * d_col) not in opened
        ]
        if not ways:
            stack.pop()
            continue
        wall_row, wall_col, next_row, next_col = rng.choice(ways)
        opened |= {(wall_row, wall_col), (next_row, next_col)}
        stack.append((next_row, next_col))
    walls = [
        (row, col)
        for row in range(1, size - 1)
        for col in range(1, size - 1)
        if (row + col) % 2 and (row, col) not in opened
    ]
    return opened | set(rng.sample(walls, size // 4))
