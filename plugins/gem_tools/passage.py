"""Passages: search results, shown to the model within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Passage", "show_passages"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with its source and its search score."""

    id: str
    title: str
    text: str
    score: float


def show_passages(
    passages: Sequence[Passage],
    max_tokens: int | None = None,
    count: Callable[[str], int] | None = None,
) -> str:
    """Return the passages as text, best first, cut to at most `max_tokens` tokens in total.

    `count` counts the tokens of a text. By default a token is three quarters of a word, as in
    English text with common tokenizers.
    """
    if not passages:
        return "Nothing was found."
    tokens = count or (lambda text: -(-4 * len(text.split()) // 3))
    shown: list[str] = []
    for rank, passage in enumerate(passages, 1):
        head = f"[{rank}] {passage.title}".rstrip()
        entry = f"{head}\n{passage.text.strip()}"
        if max_tokens is None or tokens("\n\n".join([*shown, entry])) <= max_tokens:
            shown.append(entry)
            continue
        part = _longest(entry, lambda text: tokens("\n\n".join([*shown, text])) <= max_tokens)
        if len(part) > len(head) + 2 or not shown:
            shown.append(part)
        break
    return "\n\n".join(shown)


def _longest(text: str, fits: Callable[[str], bool]) -> str:
    """Return the longest prefix that fits and ends at a word, by bisection: counting is slow."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle] + " ..."):
            low = middle
        else:
            high = middle - 1
    return text[:low].rsplit(None, 1)[0] + " ..." if " " in text[:low].strip() else text[:low]
