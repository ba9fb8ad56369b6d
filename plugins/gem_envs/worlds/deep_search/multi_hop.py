"""Multi-hop search environment: questions whose answer needs a chain of texts."""

from __future__ import annotations

import random
from typing import Any

from gem_core.arguments import whole_number
from gem_envs.agents.deep_search import DeepSearch
from gem_envs.worlds.deep_search.documents import corpus_index
from gem_envs.worlds.deep_search.encyclopedia import Relation, encyclopedia

__all__ = ["MultiHopSearch", "draw_chain"]

_QUESTIONS = 1_000_000
_STARTS = ("book", "company", "film", "person", "university")
_NOTE = "Where texts disagree, the most recent statement is right."


class MultiHopSearch(DeepSearch):
    """A question of `min_hops` to `max_hops` hops; otherwise `DeepSearch`.

    Each hop needs one more text. About 40 % of the changing facts, such as mayors, also have an
    outdated text. `corpus` may be the URL of a retrieval server that serves the same texts.
    """

    def __init__(
        self,
        min_hops: int = 2,
        max_hops: int = 4,
        corpus_seed: int = 0,
        corpus: str | None = None,
        k: int = 3,
        max_tokens: int | None = 500,
        max_turns: int = 12,
    ) -> None:
        self.min_hops = whole_number("min_hops", min_hops, 1)
        self.max_hops = whole_number("max_hops", max_hops, self.min_hops)
        self.corpus_seed = whole_number("corpus_seed", corpus_seed, 0)
        super().__init__(
            corpus=corpus or str(corpus_index(self.corpus_seed)),
            k=k,
            max_tokens=max_tokens,
            max_turns=max_turns,
        )

    def count(self) -> int:
        return _QUESTIONS

    def pose(self, index: int) -> str:
        rng = random.Random(f"{self.corpus_seed}/{self.min_hops}/{self.max_hops}/{index}")
        hops = rng.randint(self.min_hops, self.max_hops)
        names, relations = draw_chain(self.corpus_seed, hops, rng)
        world = encyclopedia(self.corpus_seed)
        text = f"the {world.entities[names[0]].kind} {names[0]}"
        for relation in relations:
            text = relation.phrase.format(x=text)
        self.row: dict[str, Any] = {
            "question": f"Name {text}. {_NOTE}",
            "answer": names[-1],
            "titles": names[:-1],
            "hops": hops,
        }
        return str(self.row["question"])


def draw_chain(corpus_seed: int, hops: int, rng: random.Random) -> tuple[list[str], list[Relation]]:
    """Draw a chain of different entities and the relations between them; the last is the answer."""
    world = encyclopedia(corpus_seed)
    while True:
        names = [rng.choice(world.by_kind[rng.choice(_STARTS)])]
        relations: list[Relation] = []
        while len(relations) < hops:
            entity = world.entities[names[-1]]
            last = len(relations) == hops - 1
            possible = [
                relation
                for relation in world.relations_of(entity.kind)
                if (last or relation.target != "number")
                and entity.facts[relation.name] not in names
            ]
            if not possible:
                break
            relations.append(rng.choice(possible))
            names.append(entity.facts[relations[-1].name])
        if len(relations) == hops:
            return names, relations
