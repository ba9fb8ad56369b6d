"""BabyAI: partially observable grid missions from minigrid, with text observations and actions.

Levels, action names and seeds match AgentGym: seed s of the n-th level is its task 40 * s + n - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import MissingDependencyError, UnknownNameError
from gem_envs.agentgym.ids import BABYAI_LEVELS
from gem_envs.games.base import Game

__all__ = ["BabyAI"]

_LEFT, _RIGHT, _FORWARD, _PICK_UP, _DROP, _TOGGLE = range(6)
"""minigrid's action numbers."""
_AHEAD = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""The change of coordinates for one step when facing ahead, right, back and left."""
Cell = tuple[int, int]
Pose = tuple[int, int, int]


class Thing(NamedTuple):
    """A visible object and the name the agent uses for it."""

    name: str
    type: str
    cell: Cell
    ahead: int
    right: int

    def __str__(self) -> str:
        text = f"{self.name}, {self.ahead} ahead"
        if self.right:
            text += f" and {abs(self.right)} to the {'right' if self.right > 0 else 'left'}"
        return text


class BabyAI(Game):
    """A BabyAI level; the reward is 1 for completing the mission.

    An action such as 'go to red ball 1' walks the shortest path over visible cells and costs one
    turn, however long the path is. minigrid's own step limit also ends the episode.
    """

    execution = "thread"
    action_example = "go to red ball 1"

    def __init__(self, level: str, max_turns: int = 64) -> None:
        if level not in BABYAI_LEVELS:
            raise UnknownNameError("BabyAI level", str(level), tuple(BABYAI_LEVELS))
        self.level = level
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.world: Any = _make(level)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        self.world.reset(seed=self.seed)
        scene = self._look()
        return (
            "BabyAI: you stand in a room, perhaps one of several, "
            "and see what lies up to 6 steps ahead of you and up to 3 to each side. "
            f"Your mission: {self.world.mission}. You have {self.max_turns} turns.\n"
            "Actions: 'turn left', 'turn right', 'move forward'; "
            "'go to THING' and 'pick up THING' walk there first; 'drop'; "
            "'toggle' opens or closes the door or box right in front of you "
            "(a locked door needs the key of its colour); "
            "'go through DOOR' for an open door, 'toggle and go through DOOR' for another. "
            "Name a THING as you see it, with its number, as in 'go to red ball 1'."
            f"\n\n{scene}",
            {"mission": str(self.world.mission)},
        )

    def on_step(self, action: str) -> StepResult:
        text = " ".join(action.lower().split()).replace("pickup", "pick up")
        moves = self.possible.get(text)
        if moves is None:
            return self._carry_on(self._why_not(text))
        for move in moves:
            _, reward, terminated, truncated, _ = self.world.step(move)
            if terminated and reward > 0:
                return self.won("The mission is done.")
            if terminated:
                return self.lost("The mission failed.")
            if truncated:
                feedback = f"You have made all of {self.world.max_steps} steps."
                return feedback, 0.0, False, True, {"success": False}
        return self._carry_on("")

    def _carry_on(self, feedback: str) -> StepResult:
        return self.carry_on(f"{feedback}\n{self._look()}".strip())

    def _why_not(self, text: str) -> str:
        for thing in self.things:
            if text.endswith(thing.name):
                return f"You cannot do that with {thing.name} now."
        if text in _SIMPLE_ACTIONS:
            return "That is not possible now."
        return "That is no action, or not with anything in view."

    # The view and the actions it allows.

    def _look(self) -> str:
        """Update the view and the possible actions; return both as text."""
        grid, visible = self.world.gen_obs_grid()
        size = grid.width
        middle, last = size // 2, grid.height - 1
        cells = {(i, j): grid.get(i, j) for i in range(size) for j in range(size) if visible[i, j]}
        cells[middle, last] = None  # the agent's cell, where minigrid shows the carried object
        self.things = _things(cells, middle, last)
        paths = _paths(cells, (middle, last, 0))
        front = cells.get((middle, last - 1))
        self.possible = self._possible_actions(paths, front)
        sentences = ["You see nothing but the room."]
        if self.things:
            sentences = [f"You see: {'; '.join(map(str, self.things))}."]
        for distance in range(1, size):
            if getattr(cells.get((middle, last - distance)), "type", "") == "wall":
                sentences.append(f"A wall is {distance} ahead.")
                break
        held = self.world.carrying
        sentences.append(f"You carry {f'a {held.color} {held.type}' if held else 'nothing'}.")
        return f"{' '.join(sentences)}\nYou can: {', '.join(self.possible)}."

    def _possible_actions(self, paths: dict[Pose, list[int]], front: Any) -> dict[str, list[int]]:
        """Return the possible actions with their moves."""
        held = self.world.carrying
        possible = {"turn left": [_LEFT], "turn right": [_RIGHT]}
        if front is None or front.can_overlap():
            possible["move forward"] = [_FORWARD]
        if front is not None and front.type in ("door", "box"):
            possible["toggle"] = [_TOGGLE]
        if held and front is None:
            possible["drop"] = [_DROP]
        path_to: dict[Cell, list[int]] = {}  # to a pose that faces the cell
        for (i, j, facing), moves in paths.items():  # nearest first: the first path is the shortest
            path_to.setdefault((i + _AHEAD[facing][0], j + _AHEAD[facing][1]), moves)
        for thing in self.things:
            path = path_to.get(thing.cell)
            if path is None:
                continue
            possible[f"go to {thing.name}"] = path
            if thing.type != "door":
                if not held:
                    possible[f"pick up {thing.name}"] = [*path, _PICK_UP]
            elif "open" in thing.name:
                possible[f"go through {thing.name}"] = [*path, _FORWARD]
            elif "closed" in thing.name or (
                held and (held.type, held.color) == ("key", thing.name.split()[0])
            ):
                possible[f"toggle and go through {thing.name}"] = [*path, _TOGGLE, _FORWARD]
        return possible

    def sample_action(self) -> str:
        return self.action_rng.choice(list(self.possible))


_SIMPLE_ACTIONS = frozenset({"turn left", "turn right", "move forward", "drop", "toggle"})


def _things(cells: Mapping[Cell, Any], middle: int, last: int) -> list[Thing]:
    """Return the visible objects except walls, from near to far, with numbered names."""
    objects = [
        (last - j + abs(i - middle), last - j, i - middle, thing)
        for (i, j), thing in cells.items()
        if thing is not None and thing.type not in ("wall", "floor")
    ]
    things: list[Thing] = []
    counts: dict[str, int] = {}
    for _, ahead, right, thing in sorted(objects, key=lambda entry: entry[:3]):
        name = f"{thing.color} {_state(thing)}{thing.type}"
        counts[name] = counts.get(name, 0) + 1
        cell = (middle + right, last - ahead)
        things.append(Thing(f"{name} {counts[name]}", thing.type, cell, ahead, right))
    return things


def _state(thing: Any) -> str:
    if thing.type != "door":
        return ""
    return "open " if thing.is_open else "locked " if thing.is_locked else "closed "


def _paths(cells: Mapping[Cell, Any], start: Pose) -> dict[Pose, list[int]]:
    """Return the shortest moves to every pose reachable over visible cells, nearest first."""
    paths: dict[Pose, list[int]] = {start: []}
    queue = [start]
    for pose in queue:
        i, j, facing = pose
        ahead = (i + _AHEAD[facing][0], j + _AHEAD[facing][1])
        turns: list[tuple[Pose, int]] = [
            ((i, j, (facing - 1) % 4), _LEFT),
            ((i, j, (facing + 1) % 4), _RIGHT),
        ]
        if ahead in cells and (cells[ahead] is None or cells[ahead].can_overlap()):
            turns.insert(0, ((*ahead, facing), _FORWARD))
        for reached, move in turns:
            if reached not in paths:
                paths[reached] = [*paths[pose], move]
                queue.append(reached)
    return paths


def _make(level: str) -> Any:
    try:
        import gymnasium
        import minigrid.envs.babyai.core.roomgrid_level as generator
    except ImportError as error:
        raise MissingDependencyError("BabyAI", "babyai", str(error)) from error
    generator.print = lambda *_: None  # minigrid prints a line for every map it discards
    version = "v1" if level == "GoToObjS6" else "v0"
    return gymnasium.make(f"BabyAI-{level}-{version}", disable_env_checker=True).unwrapped
