"""Names: invented names of people and places, drawn without repetition."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["FIRST_NAMES", "invented_words", "person_names", "place_names"]

FIRST_NAMES = (
    "Ada", "Alma", "Amir", "Anja", "Aron", "Basil", "Bela", "Bruno", "Cara", "Cleo", "Dario",
    "Dina", "Edgar", "Elin", "Emil", "Esme", "Faris", "Flora", "Gita", "Hugo", "Ines", "Ivo",
    "Jana", "Jonas", "Kaja", "Karim", "Lena", "Leo", "Lina", "Magnus", "Maya", "Milan", "Mira",
    "Nadia", "Nils", "Noor", "Olga", "Oskar", "Petra", "Quinn", "Rana", "Rafi", "Rosa", "Samir",
    "Selma", "Sven", "Tara", "Theo", "Uma", "Vera", "Viktor", "Wanda", "Yara", "Zeno",
)  # fmt: skip
_SYLLABLES = (
    "bal", "bren", "cor", "dal", "dor", "fen", "gal", "har", "kel", "lor", "mar", "mel", "nor",
    "pel", "ras", "sel", "tor", "val", "ver", "wen",
)  # fmt: skip
_NAME_ENDS = (
    "ak", "berg", "en", "er", "ic", "ik", "man", "ova", "sen", "son", "ski", "strom",
)  # fmt: skip
_PLACE_ENDS = (
    "bay", "dale", "field", "ford", "ham", "holm", "mere", "moor", "port", "stead", "ton", "vale",
    "wick", "wood",
)  # fmt: skip


def invented_words(rng: random.Random, count: int, ends: Sequence[str]) -> list[str]:
    """Draw different words of one or two syllables and an ending."""
    words: dict[str, None] = {}
    while len(words) < count:
        stem = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 2)))
        words[f"{stem}{rng.choice(ends)}".capitalize()] = None
    return list(words)


def place_names(rng: random.Random, count: int) -> list[str]:
    """Draw different place names, such as `Belmarford`."""
    return invented_words(rng, count, _PLACE_ENDS)


def person_names(rng: random.Random, count: int) -> list[str]:
    """Draw different names of people, such as `Ada Corsen`."""
    names: dict[str, None] = {}
    while len(names) < count:
        (last,) = invented_words(rng, 1, _NAME_ENDS)
        names[f"{rng.choice(FIRST_NAMES)} {last}"] = None
    return list(names)
