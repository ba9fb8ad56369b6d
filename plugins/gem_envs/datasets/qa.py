"""QA: a question with a short answer, compared by its words: normalised exact match, or the overlap F1."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from gem_core.errors import ConfigError
from gem_envs.datasets.base import DatasetQuestion
from gem_envs.datasets.question import Grade

__all__ = ["QA", "accepted_answers", "exact_match", "f1", "normalised"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LONGEST = 20_000


class QA(DatasetQuestion):
    """1 for an answer that matches one of the accepted ones. `info` has `exact_match` and `f1`; `metric` says which is paid.

    An answer in <answer> tags is taken out of them, as data sets such as RuleTaker ask for it in their own words.
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
            raise ConfigError(f"metric must be 'exact_match' or 'f1'; given: {metric!r}")
        self.metric = metric

    def expert(self) -> Iterator[str]:
        """The first accepted answer."""
        yield accepted_answers(self.row[self.answer_key])[0]

    def grade(self, answer: str) -> Grade:
        tagged = _TAG.findall(answer[-_LONGEST:])
        given = tagged[-1] if tagged else answer[:_LONGEST]
        accepted = accepted_answers(self.row[self.answer_key])
        scores = {
            "exact_match": max(exact_match(given, a) for a in accepted),
            "f1": max(f1(given, a) for a in accepted),
        }
        return Grade(scores[self.metric], info=scores)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and doubled blanks: the usual form in question answering."""
    return " ".join(_ARTICLES.sub(" ", text.casefold().translate(_NO_PUNCTUATION)).split())


def exact_match(given: str, right: str) -> float:
    """1.0 where both are the same once normalised; an empty answer matches nothing."""
    return float(normalised(given) == normalised(right) != "") or float(
        given.strip() == right.strip() != ""
    )


def f1(given: str, right: str) -> float:
    """The harmonic mean of precision and recall over the words of both, 2pr / (p + r)."""
    if exact_match(given, right):
        return 1.0
    words, wanted = normalised(given).split(), normalised(right).split()
    shared = sum((Counter(words) & Counter(wanted)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def accepted_answers(value: object) -> list[str]:
    """One answer or several: a list, a string, or a string that holds a JSON list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [str(value)]
    if isinstance(value, (list, tuple)):
        return [str(v) for v in value] or [""]
    return [str(value)]
