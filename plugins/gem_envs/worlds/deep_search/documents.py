"""Documents: the texts of the encyclopedia, with outdated texts and texts that state no fact."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from gem_envs.worlds.built_once import built_once
from gem_envs.worlds.deep_search.encyclopedia import RELATIONS, Encyclopedia, Entity, encyclopedia
from gem_envs.worlds.text_index import build_index
from gem_tools.passage import Passage

__all__ = ["corpus_index", "documents"]

_FILLERS = (
    "Visitors praise the quiet mornings.",
    "A longer account is in preparation.",
    "Local newspapers have reported on it several times.",
    "The archive holds a few photographs.",
    "Opinions on the matter differ.",
    "A small exhibition was devoted to the subject.",
)
_LETTERS, _LISTS = 400, 300
_RELATIONS = {relation.name: relation for relation in RELATIONS}


def documents(world: Encyclopedia, seed: int = 0) -> Iterator[Passage]:
    """Yield every text: articles, old yearbooks, lists, and letters to the editor."""
    rng = random.Random(f"documents/{seed}")
    number = 0
    for entity in world.entities.values():
        yield Passage(str(number), entity.name, _article(entity, rng), 0.0)
        number += 1
        if entity.outdated:
            year = max(year for year, _ in entity.outdated.values())
            yield Passage(str(number), f"{entity.name} ({year} yearbook)", _yearbook(entity), 0.0)
            number += 1
    for kind, names in world.by_kind.items():
        for _ in range(_LISTS // len(world.by_kind)):
            listed = ", ".join(rng.sample(names, 12))
            yield Passage(str(number), f"A selection of each {kind}", f"Some names: {listed}.", 0.0)
            number += 1
    for _ in range(_LETTERS):
        person, town = rng.choice(world.by_kind["person"]), rng.choice(world.by_kind["town"])
        text = f"{person} writes to us about {town}: it deserves more attention. "
        text += " ".join(rng.sample(_FILLERS, 2))
        yield Passage(str(number), f"Letter to the editor about {town}", text, 0.0)
        number += 1


def _article(entity: Entity, rng: random.Random) -> str:
    sentences = [
        _RELATIONS[name].sentence.format(s=entity.name, v=value, y=entity.years.get(name))
        for name, value in entity.facts.items()
    ]
    sentences.append(rng.choice(_FILLERS))
    rng.shuffle(sentences)
    return " ".join(sentences)


def _yearbook(entity: Entity) -> str:
    """State the outdated facts, in the words of the article."""
    parts = [
        _RELATIONS[name].sentence.format(s=entity.name, v=value, y=year)
        for name, (year, value) in entity.outdated.items()
    ]
    return " ".join(parts)


@built_once
def corpus_index(seed: int = 0) -> Path:
    """Build the search index of a world once per process, and return its folder."""
    return build_index(documents(encyclopedia(seed), seed)).path
