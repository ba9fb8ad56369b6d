"""Passage: a piece of text that a search found, and how a list of them is shown within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Passage", "show_passages"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with where it is from and how well it fits."""

    id: str
    title: str
    text: str
    score: float


def show_passages(
    passages: Sequence[Passage],
    max_tokens: int | None = None,
    count: Callable[[str], int] | None = None,
) -> str:
    """The passages, best first, cut so that the whole has `max_tokens` at most. `count` counts the tokens of a text; without
    it a token is taken to be three quarters of a word, as it is in English for common tokenizers."""
    if not passages:
        return "Nothing was found."
    counted = count or (lambda text: -(-4 * len(text.split()) // 3))
    shown: list[str] = []
    for rank, passage in enumerate(passages, 1):
        head = f"[{rank}] {passage.title}".rstrip()
        whole = f"{head}\n{passage.text.strip()}"
        if max_tokens is None or counted("\n\n".join([*shown, whole])) <= max_tokens:
            shown.append(whole)
            continue
        part = _longest(whole, lambda text: counted("\n\n".join([*shown, text])) <= max_tokens)
        if len(part) > len(head) + 2 or not shown:
            shown.append(part)
        break
    return "\n\n".join(shown)


def _longest(text: str, fits: Callable[[str], bool]) -> str:
    """The longest beginning that fits, ended at a word; found by halving, since counting tokens is not free."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(text[:middle] + " ..."):
            low = middle
        else:
            high = middle - 1
    return text[:low].rsplit(None, 1)[0] + " ..." if " " in text[:low].strip() else text[:low]
