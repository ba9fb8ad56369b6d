"""English word lists of the word games; data/README.md has their source and licence."""

from __future__ import annotations

from functools import cache
from importlib import resources

__all__ = ["LONGEST", "SHORTEST", "common_words", "is_word", "more_words", "read_data"]

SHORTEST, LONGEST = 3, 8
"""Range of word lengths that every list covers."""


def read_data(name: str) -> str:
    """Return the text of a file in `gem_envs/data`."""
    return resources.files("gem_envs").joinpath("data").joinpath(name).read_text(encoding="utf-8")


@cache
def common_words(length: int) -> tuple[str, ...]:
    """Return the common words of a length in upper case, sorted for reproducible draws."""
    return _of_length("words_common.txt", length)


@cache
def more_words(length: int) -> tuple[str, ...]:
    """Return the less common words of a length, without the common ones, in the same form."""
    return _of_length("words_more.txt", length)


def is_word(word: str) -> bool:
    """Whether an upper-case word is in either list."""
    return word in _known(len(word))


@cache
def _known(length: int) -> frozenset[str]:
    return frozenset(common_words(length) + more_words(length))


def _of_length(name: str, length: int) -> tuple[str, ...]:
    return tuple(word.upper() for word in _lines(name) if len(word) == length)


@cache
def _lines(name: str) -> tuple[str, ...]:
    return tuple(read_data(name).split())
