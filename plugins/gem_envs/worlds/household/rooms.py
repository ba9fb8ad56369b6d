"""Rooms: furniture and things of a house, and how the seed places them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = [
    "CLEANABLE",
    "COOLABLE",
    "HEATABLE",
    "LAMP",
    "ROOMS",
    "Receptacle",
    "Room",
    "Thing",
    "draw_room",
    "kinds_of",
]

LAMP = "desklamp"
HEATABLE = frozenset({"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"})
COOLABLE = HEATABLE | {"bowl", "lettuce", "pan", "pot", "winebottle"}
CLEANABLE = frozenset(
    {"apple", "bowl", "butterknife", "cup", "egg", "fork", "ladle", "lettuce", "mug", "pan"}
    | {"plate", "pot", "potato", "spatula", "spoon", "tomato", "cloth", "soapbar"}
)
_OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})
_APPLIANCES = frozenset({"coffeemachine", "toaster"})
"""Furniture in which nothing lies at the start."""


@dataclass(frozen=True)
class Room:
    """A kind of room: how many pieces of each furniture it has, and which things lie in it."""

    furniture: Mapping[str, tuple[int, int]]
    things: tuple[str, ...]
    lamp: bool = False


ROOMS = {
    "kitchen": Room(
        {
            "cabinet": (4, 8),
            "coffeemachine": (1, 1),
            "countertop": (1, 3),
            "diningtable": (1, 1),
            "drawer": (2, 5),
            "fridge": (1, 1),
            "garbagecan": (1, 1),
            "microwave": (1, 1),
            "shelf": (1, 3),
            "sinkbasin": (1, 1),
            "stoveburner": (2, 4),
            "toaster": (1, 1),
        },
        ("apple", "bowl", "bread", "butterknife", "cup", "dishsponge", "egg", "fork", "knife")
        + ("ladle", "lettuce", "mug", "pan", "peppershaker", "plate", "pot", "potato")
        + ("saltshaker", "soapbottle", "spatula", "spoon", "tomato", "winebottle"),
    ),
    "bedroom": Room(
        {
            "bed": (1, 1),
            "desk": (1, 2),
            "drawer": (3, 6),
            "dresser": (1, 1),
            "garbagecan": (1, 1),
            "laundryhamper": (1, 1),
            "safe": (1, 1),
            "shelf": (2, 5),
            "sidetable": (1, 2),
        },
        ("alarmclock", "baseballbat", "basketball", "book", "bowl", "cd", "cellphone", "creditcard")
        + ("keychain", "laptop", "mug", "pen", "pencil", "pillow", "statue", "tissuebox", "vase"),
        lamp=True,
    ),
    "livingroom": Room(
        {
            "armchair": (1, 2),
            "cabinet": (2, 4),
            "coffeetable": (1, 1),
            "drawer": (2, 5),
            "garbagecan": (1, 1),
            "shelf": (1, 4),
            "sidetable": (1, 3),
            "sofa": (1, 1),
            "tvstand": (1, 1),
        },
        ("book", "box", "cellphone", "creditcard", "keychain", "laptop", "newspaper", "pillow")
        + ("plate", "remotecontrol", "statue", "tissuebox", "vase", "watch", "wateringcan"),
        lamp=True,
    ),
    "bathroom": Room(
        {
            "bathtubbasin": (1, 1),
            "cabinet": (2, 5),
            "countertop": (1, 2),
            "drawer": (1, 4),
            "garbagecan": (1, 1),
            "handtowelholder": (1, 2),
            "shelf": (1, 3),
            "sinkbasin": (1, 2),
            "toilet": (1, 1),
            "towelholder": (1, 1),
        },
        ("candle", "cloth", "dishsponge", "handtowel", "plunger", "scrubbrush", "soapbar")
        + ("soapbottle", "spraybottle", "tissuebox", "toiletpaper", "towel"),
    ),
}


@dataclass
class Thing:
    """A thing that can be taken, such as `mug 1`."""

    kind: str
    number: int
    states: set[str] = field(default_factory=set)
    """`hot`, `cool`, `clean`; for a lamp `on`."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"


@dataclass
class Receptacle:
    """A piece of furniture that things lie in or on, such as `drawer 2`."""

    kind: str
    number: int
    is_open: bool = False
    things: list[Thing] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"

    @property
    def openable(self) -> bool:
        return self.kind in _OPENABLE

    @property
    def shows_things(self) -> bool:
        return self.is_open or not self.openable


def kinds_of(room: str) -> list[str]:
    """Return the kinds of furniture into which a task may ask to put things."""
    return sorted(set(ROOMS[room].furniture) - _APPLIANCES)


def draw_room(
    room: str, goal: str, count: int, avoid: str | None, rng: random.Random
) -> list[Receptacle]:
    """Furnish a room with at least `count` things of the kind `goal`, none of them in `avoid`."""
    plan = ROOMS[room]
    furniture = [
        Receptacle(kind, number)
        for kind, (least, most) in plan.furniture.items()
        for number in range(1, rng.randint(least, most) + 1)
    ]
    rng.shuffle(furniture)
    places = [place for place in furniture if place.kind not in _APPLIANCES]
    for thing in _draw_things(plan, goal, count, rng):
        possible = [
            place
            for place in places
            if not (thing.kind == goal and place.kind == avoid)
            and not (thing.kind == LAMP and place.kind not in ("desk", "dresser", "sidetable"))
        ]
        rng.choice(possible).things.append(thing)
    return furniture


def _draw_things(plan: Room, goal: str, count: int, rng: random.Random) -> Iterator[Thing]:
    others = [kind for kind in plan.things if kind != goal]
    kinds = rng.sample(others, min(len(others), rng.randint(8, 12)))
    counts = {goal: rng.randint(count, count + 1), **{kind: rng.randint(1, 2) for kind in kinds}}
    if plan.lamp:
        counts[LAMP] = 1
    for kind, number in counts.items():
        for i in range(1, number + 1):
            yield Thing(kind, i)
