"""BabyAI: missions in rooms on a grid, of which the agent sees a part; told and acted on in words, on minigrid.

The levels, the words of the actions and the seeds are those of AgentGym: seed s of the n-th level is its task 40 * s + n - 1.
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
"""minigrid's moves."""
_AHEAD = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""What one step changes in the view, looking ahead, right, back and left."""
Cell = tuple[int, int]
Pose = tuple[int, int, int]


class Thing(NamedTuple):
    """Something in view, with the name it is called by."""

    name: str
    type: str
    cell: Cell
    ahead: int
    right: int

    def __str__(self) -> str:
        side = (
            f" and {abs(self.right)} to the {'right' if self.right > 0 else 'left'}"
            if self.right
            else ""
        )
        return f"{self.name}, {self.ahead} ahead{side}"


class BabyAI(Game):
    """Pays 1 for the mission. An action such as 'go to red ball 1' walks the shortest way over what is in view, and costs one
    turn however long that is; minigrid's own count of steps ends the episode as well.
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
            "BabyAI: you stand in a room, perhaps one of several, and see what lies up to 6 steps ahead of you and up to 3 to "
            f"each side. Your mission: {self.world.mission}. You have {self.max_turns} turns.\n"
            "Actions: 'turn left', 'turn right', 'move forward'; 'go to THING' and 'pick up THING' walk there first; 'drop'; "
            "'toggle' opens or closes the door or box right in front of you (a locked door needs the key of its colour); "
            "'go through DOOR' for an open door, 'toggle and go through DOOR' for another. Name a THING as you see it, with its "
            f"number, as in 'go to red ball 1'.\n\n{scene}",
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
                return (
                    f"You have made all of {self.world.max_steps} steps.",
                    0.0,
                    False,
                    True,
                    {"success": False},
                )
        return self._carry_on("")

    def _carry_on(self, said: str) -> StepResult:
        return self.carry_on(f"{said}\n{self._look()}".strip())

    def _why_not(self, text: str) -> str:
        for thing in self.things:
            if text.endswith(thing.name):
                return f"You cannot do that with {thing.name} now."
        return (
            "That is not possible now."
            if text in _WORDS
            else "That is no action, or not with anything in view."
        )

    # What is seen, and what can be done about it.

    def _look(self) -> str:
        """Takes in the view, works out what can be done, and says so."""
        grid, visible = self.world.gen_obs_grid()
        size = grid.width
        middle, last = size // 2, grid.height - 1
        cells = {(i, j): grid.get(i, j) for i in range(size) for j in range(size) if visible[i, j]}
        cells[middle, last] = None  # the agent itself, where minigrid shows what it carries
        self.things = _things(cells, middle, last)
        ways = _ways(cells, (middle, last, 0))
        front = cells.get((middle, last - 1))
        self.possible = self._doable(ways, front)
        wall = next(
            (
                n
                for n in range(1, size)
                if getattr(cells.get((middle, last - n)), "type", "") == "wall"
            ),
            None,
        )
        seen = [
            f"You see: {'; '.join(map(str, self.things))}."
            if self.things
            else "You see nothing but the room."
        ]
        if wall is not None:
            seen.append(f"A wall is {wall} ahead.")
        held = self.world.carrying
        seen.append(f"You carry {f'a {held.color} {held.type}' if held else 'nothing'}.")
        return f"{' '.join(seen)}\nYou can: {', '.join(self.possible)}."

    def _doable(self, ways: dict[Pose, list[int]], front: Any) -> dict[str, list[int]]:
        """The possible actions, each with its moves."""
        held = self.world.carrying
        possible = {"turn left": [_LEFT], "turn right": [_RIGHT]}
        if front is None or front.can_overlap():
            possible["move forward"] = [_FORWARD]
        if front is not None and front.type in ("door", "box"):
            possible["toggle"] = [_TOGGLE]
        if held and front is None:
            possible["drop"] = [_DROP]
        before: dict[Cell, list[int]] = {}
        for (
            (i, j, facing),
            moves,
        ) in (
            ways.items()
        ):  # from the nearest on: the first way to stand before a cell is the shortest
            before.setdefault((i + _AHEAD[facing][0], j + _AHEAD[facing][1]), moves)
        for thing in self.things:
            way = before.get(thing.cell)
            if way is None:
                continue
            possible[f"go to {thing.name}"] = way
            if thing.type != "door":
                if not held:
                    possible[f"pick up {thing.name}"] = [*way, _PICK_UP]
            elif "open" in thing.name:
                possible[f"go through {thing.name}"] = [*way, _FORWARD]
            elif "closed" in thing.name or (
                held and (held.type, held.color) == ("key", thing.name.split()[0])
            ):
                possible[f"toggle and go through {thing.name}"] = [*way, _TOGGLE, _FORWARD]
        return possible

    def sample_action(self) -> str:
        return self.action_rng.choice(list(self.possible))


_WORDS = frozenset({"turn left", "turn right", "move forward", "drop", "toggle"})


def _things(cells: Mapping[Cell, Any], middle: int, last: int) -> list[Thing]:
    """What there is in view but walls, from near to far, numbered where names are equal."""
    found = [
        (last - j + abs(i - middle), last - j, i - middle, thing)
        for (i, j), thing in cells.items()
        if thing is not None and thing.type not in ("wall", "floor")
    ]
    things: list[Thing] = []
    seen: dict[str, int] = {}
    for _, ahead, right, thing in sorted(found, key=lambda entry: entry[:3]):
        name = f"{thing.color} {_state(thing)}{thing.type}"
        seen[name] = seen.get(name, 0) + 1
        things.append(
            Thing(f"{name} {seen[name]}", thing.type, (middle + right, last - ahead), ahead, right)
        )
    return things


def _state(thing: Any) -> str:
    if thing.type != "door":
        return ""
    return "open " if thing.is_open else "locked " if thing.is_locked else "closed "


def _ways(cells: Mapping[Cell, Any], start: Pose) -> dict[Pose, list[int]]:
    """The shortest moves to every place and direction within reach over cells in view, from the nearest on."""
    ways: dict[Pose, list[int]] = {start: []}
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
            if reached not in ways:
                ways[reached] = [*ways[pose], move]
                queue.append(reached)
    return ways


def _make(level: str) -> Any:
    try:
        import gymnasium
        import minigrid.envs.babyai.core.roomgrid_level as generator
    except ImportError as error:
        raise MissingDependencyError("BabyAI", "babyai", str(error)) from error
    generator.print = lambda *_: None  # it reports every map it discards
    version = "v1" if level == "GoToObjS6" else "v0"
    return gymnasium.make(f"BabyAI-{level}-{version}", disable_env_checker=True).unwrapped
