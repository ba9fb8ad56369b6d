"""Household environment: find, carry, heat, cool and clean things in a room."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import UnknownNameError
from gem_envs.games.base import Game
from gem_envs.worlds.household.rooms import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    LAMP,
    Receptacle,
    Thing,
    draw_room,
)
from gem_envs.worlds.household.tasks import TASK_TYPES, TaskType, draw_task

__all__ = ["Household"]

_NAME = r"([a-z]{2,20} \d{1,2})"
_GO = re.compile(rf"go to {_NAME}")
_OPEN = re.compile(rf"(open|close) {_NAME}")
_TAKE = re.compile(rf"take {_NAME} from {_NAME}")
_PUT = re.compile(rf"(?:put {_NAME} (?:in/on|in|on)|move {_NAME} to) {_NAME}")
_USE = re.compile(rf"(?:use|toggle) {_NAME}")
_CHANGE = re.compile(rf"(heat|cool|clean) {_NAME} with {_NAME}")
_EXAMINE = re.compile(rf"examine {_NAME}")
_CHANGES = {
    "heat": ("microwave", HEATABLE, "hot", "cool"),
    "cool": ("fridge", COOLABLE, "cool", "hot"),
    "clean": ("sinkbasin", CLEANABLE, "clean", ""),
}
"""Verb: the furniture it needs, the kinds it works on, the state it gives and the one it ends."""
_HELP = (
    "Actions: go to X; open X; close X; take THING from X; put THING in/on X; heat THING with X; "
    "cool THING with X; clean THING with X; use THING; examine X; look; inventory. "
    "You can carry one thing."
)


class Household(Game):
    """A household task in one room; the reward is 1 for the goal.

    `task` is one of ALFWorld's six types, or None to let the seed draw one. `show_actions` lists
    the possible actions after each observation, as AgentGym does after a reset. `info` always has
    them as `available_actions`.
    """

    action_example = "go to drawer 1"

    def __init__(
        self, task: TaskType | None = None, show_actions: bool = False, max_turns: int = 50
    ) -> None:
        if task is not None and task not in TASK_TYPES:
            raise UnknownNameError("household task", str(task), TASK_TYPES)
        self.task_type = task
        self.show_actions = show_actions
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        task_type = self.rng.choice(TASK_TYPES) if self.task_type is None else self.task_type
        self.task = draw_task(task_type, self.rng)
        furniture = draw_room(
            self.task.room, self.task.thing, self.task.count, self.task.target, self.rng
        )
        self.furniture = {place.name: place for place in furniture}
        self.at: Receptacle | None = None
        self.held: Thing | None = None
        self.start = f"You are in the middle of a room. You see {_listing(furniture)}."
        return (
            f"{_HELP} You have {self.max_turns} turns.\n\n{self.start}\n\n"
            f"Your task is to: {self.task}{self._action_list()}",
            {"task_type": self.task.type, "available_actions": self.available_actions()},
        )

    def on_step(self, action: str) -> StepResult:
        feedback = self._do(" ".join(action.lower().split()).rstrip("."))
        if self.task.is_solved(tuple(self.furniture.values()), self.held, self.at):
            return self.won(f"{feedback}\nYou have solved the task.")
        return self.carry_on(
            feedback + self._action_list(), available_actions=self.available_actions()
        )

    def _do(self, command: str) -> str:
        if command == "look":
            return self._look()
        if command == "inventory":
            return f"You are carrying: {_listing([self.held] if self.held else [])}."
        if match := _GO.fullmatch(command):
            return self._go(match[1])
        if match := _OPEN.fullmatch(command):
            return self._set_open(match[2], match[1] == "open")
        if match := _TAKE.fullmatch(command):
            return self._take(match[1], match[2])
        if match := _PUT.fullmatch(command):
            return self._put(match[1] or match[2], match[3])
        if match := _CHANGE.fullmatch(command):
            return self._change(match[1], match[2], match[3])
        if match := _USE.fullmatch(command):
            return self._use(match[1])
        if match := _EXAMINE.fullmatch(command):
            return self._examine(match[1])
        return f"Nothing happens. {_HELP}"

    def _look(self) -> str:
        if self.at is None:
            return self.start
        return f"You are facing the {self.at.name}. {self._contents(self.at)}"

    def _go(self, name: str) -> str:
        place = self.furniture.get(name)
        if place is None or place is self.at:
            return "Nothing happens."
        self.at = place
        return f"You arrive at {name}. {self._contents(place)}"

    def _contents(self, place: Receptacle) -> str:
        if not place.shows_things:
            return f"The {place.name} is closed."
        if place.openable:
            return f"The {place.name} is open. In it, you see {_listing(place.things)}."
        return f"On the {place.name}, you see {_listing(place.things)}."

    def _set_open(self, name: str, is_open: bool) -> str:
        place = self._here(name)
        if place is None or not place.openable or place.is_open == is_open:
            return "Nothing happens."
        place.is_open = is_open
        return f"You open the {name}. {self._contents(place)}" if is_open else f"You close {name}."

    def _take(self, name: str, source: str) -> str:
        place = self._here(source)
        thing = self._visible(name) if place else None
        if place is None or thing is None or self.held is not None or thing.kind == LAMP:
            return "Nothing happens."
        place.things.remove(thing)
        self.held = thing
        return f"You pick up the {name} from the {source}."

    def _put(self, name: str, target: str) -> str:
        place = self._here(target)
        if place is None or not place.shows_things or self.held is None or self.held.name != name:
            return "Nothing happens."
        place.things.append(self.held)
        self.held = None
        return f"You put the {name} in/on the {target}."

    def _change(self, verb: str, name: str, device: str) -> str:
        kind, suitable, gained, lost = _CHANGES[verb]
        place, thing = self._here(device), self.held
        if place is None or place.kind != kind or thing is None or thing.name != name:
            return "Nothing happens."
        if thing.kind not in suitable:
            return "Nothing happens."
        thing.states.discard(lost)
        thing.states.add(gained)
        return f"You {verb} the {name} using the {device}."

    def _use(self, name: str) -> str:
        thing = self._visible(name)
        if thing is None or thing.kind != LAMP:
            return "Nothing happens."
        thing.states ^= {"on"}
        return f"You turn {'on' if 'on' in thing.states else 'off'} the {name}."

    def _examine(self, name: str) -> str:
        place = self._here(name)
        if place is not None:
            return self._contents(place)
        thing = self.held if self.held and self.held.name == name else self._visible(name)
        if thing is None:
            return "Nothing happens."
        states = ", ".join(sorted(thing.states)) or "nothing special"
        return f"The {name}: {states}."

    def _here(self, name: str) -> Receptacle | None:
        """Return the named furniture if the player stands at it."""
        return self.at if self.at is not None and self.at.name == name else None

    def _visible(self, name: str) -> Thing | None:
        if self.at is None or not self.at.shows_things:
            return None
        return next((thing for thing in self.at.things if thing.name == name), None)

    def _action_list(self) -> str:
        if not self.show_actions:
            return ""
        return f"\nAVAILABLE ACTIONS: {', '.join(self.available_actions())}"

    def available_actions(self) -> list[str]:
        """Return the actions that change something or show something new."""
        actions = [f"go to {name}" for name in self.furniture if self._here(name) is None]
        place, held = self.at, self.held
        if place is not None:
            if place.openable:
                actions.append(f"{'close' if place.is_open else 'open'} {place.name}")
            things = place.things if place.shows_things else []
            actions += [f"use {thing.name}" for thing in things if thing.kind == LAMP]
            if held is None:
                actions += [
                    f"take {thing.name} from {place.name}" for thing in things if thing.kind != LAMP
                ]
            else:
                if place.shows_things:
                    actions.append(f"put {held.name} in/on {place.name}")
                actions += [
                    f"{verb} {held.name} with {place.name}"
                    for verb, (kind, suitable, _, _) in _CHANGES.items()
                    if place.kind == kind and held.kind in suitable
                ]
            actions.append(f"examine {place.name}")
        return [*actions, "look", "inventory"]

    def sample_action(self) -> str:
        return self.action_rng.choice(self.available_actions())

    def expert(self) -> Iterator[str]:
        """Solve the task with knowledge of where everything is."""
        task = self.task
        target = next((p for p in self.furniture.values() if p.kind == task.target), None)
        for _ in range(task.count):
            source, thing = next(
                (place, thing)
                for place in self.furniture.values()
                for thing in place.things
                if thing.kind == task.thing and place is not target
            )
            yield from self._walk(source, to_reach=True)
            yield f"take {thing.name} from {source.name}"
            if task.type == "LookInLight":
                lamp_place, lamp = next(
                    (place, thing)
                    for place in self.furniture.values()
                    for thing in place.things
                    if thing.kind == LAMP
                )
                yield from self._walk(lamp_place)
                yield f"use {lamp.name}"
                return
            if task.device is not None:
                device = next(p for p in self.furniture.values() if p.kind == task.device)
                yield from self._walk(device)
                verb = next(verb for verb, change in _CHANGES.items() if change[2] == task.state)
                yield f"{verb} {thing.name} with {device.name}"
            assert target is not None  # only LookInLight has none
            yield from self._walk(target, to_reach=True)
            yield f"put {thing.name} in/on {target.name}"

    def _walk(self, place: Receptacle, to_reach: bool = False) -> Iterator[str]:
        """Go to a place and, `to_reach` its inside, open it."""
        if self.at is not place:
            yield f"go to {place.name}"
        if to_reach and not place.shows_things:
            yield f"open {place.name}"


def _listing(items: Sequence[Thing | Receptacle]) -> str:
    """Return `a mug 1, and a pen 2`, as ALFWorld writes lists."""
    if not items:
        return "nothing"
    names = [f"a {item.name}" for item in items]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"
