"""Tasks: ALFWorld's six task types, as goals on the state of a room."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gem_envs.worlds.household.rooms import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    LAMP,
    ROOMS,
    Receptacle,
    Thing,
    kinds_of,
)

__all__ = ["TASK_TYPES", "HouseholdTask", "TaskType", "draw_task"]

TaskType = Literal[
    "PickAndPlace", "LookInLight", "CleanAndPlace", "HeatAndPlace", "CoolAndPlace", "PickTwo"
]
TASK_TYPES: tuple[TaskType, ...] = (
    "PickAndPlace",
    "LookInLight",
    "CleanAndPlace",
    "HeatAndPlace",
    "CoolAndPlace",
    "PickTwo",
)
_STATES = {"CleanAndPlace": "clean", "HeatAndPlace": "hot", "CoolAndPlace": "cool"}
_SUITABLE = {"clean": CLEANABLE, "hot": HEATABLE, "cool": COOLABLE}
_DEVICES = {"clean": "sinkbasin", "hot": "microwave", "cool": "fridge"}


@dataclass(frozen=True)
class HouseholdTask:
    """A task: its type, its room, the kind of thing, and the kind of furniture it belongs to."""

    type: TaskType
    room: str
    thing: str
    target: str | None = None
    """The kind of furniture; None to look at the thing under a lamp."""

    @property
    def count(self) -> int:
        """How many things must be in the target."""
        return 2 if self.type == "PickTwo" else 1

    @property
    def state(self) -> str | None:
        """The state that the thing must have: `clean`, `hot` or `cool`."""
        return _STATES.get(self.type)

    @property
    def device(self) -> str | None:
        """The kind of furniture that gives the thing its state."""
        return None if self.state is None else _DEVICES[self.state]

    def __str__(self) -> str:
        if self.type == "LookInLight":
            return f"look at {self.thing} under the {LAMP}."
        if self.type == "PickTwo":
            return f"put two {self.thing} in {self.target}."
        state = "" if self.state is None else f"{self.state} "
        return f"put a {state}{self.thing} in {self.target}."

    def is_solved(
        self, furniture: Sequence[Receptacle], held: Thing | None, at: Receptacle | None
    ) -> bool:
        """Whether the goal holds."""
        if self.type == "LookInLight":
            holds = held is not None and held.kind == self.thing
            return holds and any(
                thing.kind == LAMP and "on" in thing.states for thing in (at.things if at else ())
            )
        return any(
            sum(self._fits(thing) for thing in place.things) >= self.count
            for place in furniture
            if place.kind == self.target
        )

    def _fits(self, thing: Thing) -> bool:
        return thing.kind == self.thing and (self.state is None or self.state in thing.states)


def draw_task(type: TaskType, rng: random.Random) -> HouseholdTask:
    """Draw room, thing and target of a task."""
    if type == "LookInLight":
        room = rng.choice(sorted(name for name, plan in ROOMS.items() if plan.lamp))
        return HouseholdTask(type, room, rng.choice(ROOMS[room].things))
    state = _STATES.get(type)
    if state is None:
        room = rng.choice(sorted(ROOMS))
        things = ROOMS[room].things
    else:
        device, suitable = _DEVICES[state], _SUITABLE[state]
        rooms = [name for name, plan in sorted(ROOMS.items()) if device in plan.furniture]
        room = rng.choice(rooms)
        things = tuple(thing for thing in ROOMS[room].things if thing in suitable)
    targets = [kind for kind in kinds_of(room) if state is None or kind not in _DEVICES.values()]
    return HouseholdTask(type, room, rng.choice(things), rng.choice(targets))
