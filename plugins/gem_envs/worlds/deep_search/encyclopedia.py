"""Encyclopedia: an invented world of people, places, companies and works, linked by facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gem_envs.worlds.built_once import built_once
from gem_envs.worlds.names import invented_words, person_names, place_names

__all__ = ["COUNTS", "RELATIONS", "Encyclopedia", "Entity", "Relation", "encyclopedia"]

COUNTS = {
    "region": 100,
    "mountain": 500,
    "river": 500,
    "town": 1500,
    "university": 500,
    "person": 7000,
    "company": 1500,
    "book": 4000,
    "film": 1500,
}
"""How many entities of each kind there are."""
_ADJECTIVES = ("Amber", "Burning", "Crooked", "Distant", "Empty", "Golden", "Hollow", "Silent")
_NOUNS = ("Bridge", "Clock", "Garden", "Lantern", "Mirror", "Orchard", "Road", "Tide", "Winter")
_PEAKS = ("horn", "kop", "nak", "peak", "spitz", "tor")
_WATERS = ("ach", "au", "bek", "esk", "ine", "wash")
_COMPANY_ENDS = ("air", "chem", "line", "mill", "soft", "steel", "trade")
_OUTDATED_SHARE = 0.4
"""The share of entities with a changing fact that have an outdated text as well."""


@dataclass(frozen=True)
class Relation:
    """A fact that every entity of a kind has, with one value."""

    name: str
    kind: str
    target: str
    """The kind of the value: a kind of entity, or `number`."""
    sentence: str
    """How a text states it: {s} is the entity, {v} the value, {y} the year of a changing fact."""
    phrase: str
    """How a question refers to the value: {x} is the entity."""
    changes: bool = False
    """Whether an older text may state an outdated value."""


RELATIONS = (
    Relation("born_in", "person", "town", "{s} was born in {v}.", "the birthplace of {x}"),
    Relation("born", "person", "number", "{s} was born in the year {v}.",
             "the year of birth of {x}"),
    Relation("works_for", "person", "company", "Since {y}, {s} has worked for {v}.",
             "the employer of {x}", changes=True),
    Relation("taught_by", "person", "person", "{s} learned the trade from {v}.",
             "the teacher of {x}"),
    Relation("mayor", "town", "person", "Since {y}, the mayor of {s} has been {v}.",
             "the mayor of {x}", changes=True),
    Relation("river", "town", "river", "{s} lies on the river {v}.",
             "the river of {x}"),
    Relation("region", "town", "region", "{s} belongs to the region {v}.",
             "the region of {x}"),
    Relation("twin", "town", "town", "{s} is twinned with {v}.", "the twin town of {x}"),
    Relation("founded", "town", "number", "{s} was founded in the year {v}.",
             "the year of foundation of {x}"),
    Relation("source", "river", "mountain", "The {s} rises on {v}.",
             "the source mountain of {x}"),
    Relation("length", "river", "number", "The {s} is {v} kilometres long.",
             "the length in kilometres of {x}"),
    Relation("climber", "mountain", "person", "{s} was first climbed by {v}.",
             "the first climber of {x}"),
    Relation("height", "mountain", "number", "{s} is {v} metres high.",
             "the height in metres of {x}"),
    Relation("capital", "region", "town", "The capital of {s} is {v}.", "the capital of {x}"),
    Relation("peak", "region", "mountain", "The highest mountain of {s} is {v}.",
             "the highest mountain of {x}"),
    Relation("headquarters", "company", "town", "Since {y}, {s} has had its headquarters in {v}.",
             "the headquarters town of {x}", changes=True),
    Relation("founder", "company", "person", "{s} was founded by {v}.", "the founder of {x}"),
    Relation("rector", "university", "person", "Since {y}, the rector of {s} has been {v}.",
             "the rector of {x}", changes=True),
    Relation("campus", "university", "town", "The campus of {s} is in {v}.",
             "the campus town of {x}"),
    Relation("author", "book", "person", "{s} is a novel by {v}.", "the author of {x}"),
    Relation("publisher", "book", "company", "{s} was published by {v}.", "the publisher of {x}"),
    Relation("setting", "book", "town", "The story of {s} takes place in {v}.",
             "the setting of {x}"),
    Relation("director", "film", "person", "{s} was directed by {v}.", "the director of {x}"),
    Relation("based_on", "film", "book", "{s} is based on the novel {v}.",
             "the literary source of {x}"),
)  # fmt: skip
_NUMBERS = {
    "born": (1930, 2001),
    "founded": (820, 1890),
    "length": (21, 980),
    "height": (310, 6900),
}


@dataclass(frozen=True)
class Entity:
    """A thing of the world with its facts."""

    kind: str
    name: str
    facts: dict[str, str]
    """The values by relation."""
    years: dict[str, int]
    """The years since when the changing facts hold."""
    outdated: dict[str, tuple[int, str]]
    """(year of the text, value) by relation, for entities with an outdated text."""


@dataclass(frozen=True)
class Encyclopedia:
    """All entities by name, and the names by kind."""

    entities: Mapping[str, Entity]
    by_kind: Mapping[str, list[str]]

    def relations_of(self, kind: str) -> list[Relation]:
        """Return the facts that entities of a kind have."""
        return [relation for relation in RELATIONS if relation.kind == kind]


@built_once
def encyclopedia(seed: int = 0) -> Encyclopedia:
    """Return the world of a seed, which all episodes of a process share."""
    rng = random.Random(f"encyclopedia/{seed}")
    by_kind = _draw_names(rng)
    entities = {}
    for kind, names in by_kind.items():
        relations = [relation for relation in RELATIONS if relation.kind == kind]
        for name in names:
            entities[name] = _draw_entity(kind, name, relations, by_kind, rng)
    return Encyclopedia(entities, by_kind)


def _draw_names(rng: random.Random) -> dict[str, list[str]]:
    places = iter(place_names(rng, COUNTS["town"] + COUNTS["region"] + COUNTS["university"]))
    towns = [next(places) for _ in range(COUNTS["town"])]
    return {
        "region": [f"{next(places)} County" for _ in range(COUNTS["region"])],
        "mountain": [f"Mount {name}" for name in invented_words(rng, COUNTS["mountain"], _PEAKS)],
        "river": [f"{name} River" for name in invented_words(rng, COUNTS["river"], _WATERS)],
        "town": towns,
        "university": [f"{next(places)} University" for _ in range(COUNTS["university"])],
        "person": person_names(rng, COUNTS["person"]),
        "company": invented_words(rng, COUNTS["company"], _COMPANY_ENDS),
        "book": _different(lambda: f"{_title(rng)} of {rng.choice(towns)}", COUNTS["book"]),
        "film": _different(lambda: f"{_title(rng)} from {rng.choice(towns)}", COUNTS["film"]),
    }


def _title(rng: random.Random) -> str:
    return f"The {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"


def _different(draw: Callable[[], str], count: int) -> list[str]:
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)


def _draw_entity(
    kind: str,
    name: str,
    relations: list[Relation],
    by_kind: Mapping[str, list[str]],
    rng: random.Random,
) -> Entity:
    entity = Entity(kind, name, {}, {}, {})
    has_outdated = rng.random() < _OUTDATED_SHARE
    for relation in relations:
        if relation.target == "number":
            entity.facts[relation.name] = str(rng.randint(*_NUMBERS[relation.name]))
            continue
        value, other = _two_others(name, by_kind[relation.target], rng)
        entity.facts[relation.name] = value
        if relation.changes:
            entity.years[relation.name] = rng.randint(2005, 2023)
            if has_outdated:
                entity.outdated[relation.name] = (rng.randint(1975, 2003), other)
    return entity


def _two_others(name: str, names: list[str], rng: random.Random) -> tuple[str, str]:
    """Draw two different names other than this one."""
    first, second, third = (rng.randrange(len(names)) for _ in range(3))
    drawn = list(dict.fromkeys(names[i] for i in (first, second, third) if names[i] != name))
    return (drawn[0], drawn[1]) if len(drawn) > 1 else _two_others(name, names, rng)
