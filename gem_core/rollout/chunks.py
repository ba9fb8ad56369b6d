"""Chunks: encode a growing text piece by piece, each piece once.

In `template` mode the whole conversation is rendered every turn. Encoding it is the expensive part:
at turn 300, 116 ms of 125. A tokenizer encodes the text on each side of a special token on its own,
so the text can be split in front of one and the ids of known pieces reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["Chunks", "separator_of"]

Encode = Callable[[str], tuple[int, ...]]


class Chunks:
    """The encoded pieces of one conversation. `separator` begins every piece but the first."""

    def __init__(self, encode: Encode, separator: str) -> None:
        self._encode, self._separator = encode, separator
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text."""
        if not self._separator:
            return self._encode(text)
        first, *rest = text.split(self._separator)
        ids: list[int] = []
        for chunk in [first] * bool(first) + [self._separator + part for part in rest]:
            known = self._known.get(chunk)
            if known is None:
                known = self._known[chunk] = self._encode(chunk)
            ids += known
        return tuple(ids)


def separator_of(text: str, encode: Encode, name: Callable[[int], str], ids: Iterable[int]) -> str:
    """Return the special token that occurs most often in a text and splits it exactly, or "".

    `ids`: the special tokens; `name` returns the text of one.
    """
    special = frozenset(ids)
    for id, count in Counter(i for i in encode(text) if i in special).most_common():
        token = name(id)
        if token and text.count(token) == count and _splits_exactly(token, encode):
            return token
    return ""


def _splits_exactly(token: str, encode: Encode) -> bool:
    """Whether the text before and after the token does not change its encoding."""
    parts = ["a b", *(f"{token}{text}" for text in ("a b \n", "\n\n a", " ", "\n", "", "b"))]
    return encode("".join(parts)) == sum(map(encode, parts), ())
