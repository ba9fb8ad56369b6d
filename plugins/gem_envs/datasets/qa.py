"""QA: a question with a short answer, graded by normalised exact match or token F1."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from gem_core.errors import ConfigError
from gem_core.wrappers.formats import Boxed, last_boxed
from gem_envs.datasets.base import DatasetQuestion
from gem_envs.datasets.question import Grade
from gem_tools.calls import without_thinking

__all__ = [
    "QA",
    "Answer",
    "accepted_answers",
    "exact_match",
    "f1",
    "normalised",
    "tagged_answer",
]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LONGEST = 20_000


class QA(DatasetQuestion):
    """Question answering: the reward is the best score over all accepted answers.

    `metric` selects the score; `info` has both `exact_match` and `f1`. If the answer contains
    <answer> tags, as datasets such as RuleTaker request, only the last text in such tags counts.
    """

    def __init__(
        self,
        dataset: str,
        split: str | None = None,
        subset: str | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        metric: Literal["exact_match", "f1"] = "exact_match",
        max_turns: int = 1,
    ) -> None:
        super().__init__(dataset, split, subset, question_key, answer_key, max_turns)
        if metric not in ("exact_match", "f1"):
            raise ConfigError(f"metric must be 'exact_match' or 'f1', got {metric!r}")
        self.metric = metric

    def expert(self) -> Iterator[str]:
        """Yield the first accepted answer."""
        yield accepted_answers(self.row[self.answer_key])[0]

    def grade(self, answer: str) -> Grade:
        answer = without_thinking(answer)
        tagged = tagged_answer(answer)
        final = (answer if tagged is None else tagged)[:_LONGEST]
        accepted = accepted_answers(self.row[self.answer_key])
        scores = {
            "exact_match": max(exact_match(final, a) for a in accepted),
            "f1": max(f1(final, a) for a in accepted),
        }
        return Grade(scores[self.metric], info=scores)


class Answer(Boxed):
    r"""The answer is in the last `<answer>` tags with a text or, without them, in `\boxed{}`.

    A box inside the tags is opened. The last box counts, and thinking does not.
    """

    def parse(self, text: str) -> str | None:
        text = without_thinking(text)
        tagged = tagged_answer(text)
        return last_boxed(text) if tagged is None else tagged


def tagged_answer(text: str) -> str | None:
    r"""Return the text in the last pair of `<answer>` tags that has any, or None.

    If the text has a `\boxed{}`, return the content of the last one.
    """
    begin, answer = -1, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            begin = tag.end()
        elif begin >= 0:
            answer = text[begin : tag.start()].strip() or answer
            begin = -1
    boxed = None if answer is None else last_boxed(answer)
    return boxed or answer


def normalised(text: str) -> str:
    """Return the text in lower case without punctuation, articles and extra whitespace.

    This is the usual normalisation in question answering.
    """
    return " ".join(_ARTICLES.sub(" ", text.casefold().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, expected: str) -> float:
    """Return 1.0 if both texts are equal after normalisation; an empty answer never matches."""
    return float(normalised(answer) == normalised(expected) != "") or float(
        answer.strip() == expected.strip() != ""
    )


def f1(answer: str, expected: str) -> float:
    """Return the harmonic mean of precision and recall over the words, 2pr / (p + r)."""
    if exact_match(answer, expected):
        return 1.0
    words, expected_words = normalised(answer).split(), normalised(expected).split()
    shared = sum((Counter(words) & Counter(expected_words)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(expected_words)
    return 2 * precision * recall / (precision + recall)


def accepted_answers(value: object) -> list[str]:
    """Return the accepted answers from a list, a string or a JSON list in a string."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [str(value)]
    if isinstance(value, (list, tuple)):
        return [str(v) for v in value] or [""]
    return [str(value)]
