"""Maths: a problem with one right answer, compared as mathematics by math-verify."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from gem_core.arguments import whole_number
from gem_core.errors import EnvError, MissingDependencyError
from gem_envs.datasets.base import DatasetQuestion
from gem_envs.datasets.grader import shared_grader
from gem_envs.datasets.question import Grade

__all__ = ["Maths", "equal"]

_LONGEST = 4000
"""Characters of an answer; a final answer is shorter."""


class Maths(DatasetQuestion):
    """1 for an answer equal to the right one: 1/2, 0.5 and \\frac{1}{2} are the same.

    But 12 * 34 is no answer to "What is 12 * 34?", though it is equal, and x^2 - 9 is none to "Factor x^2 - 9": a model that is
    rewarded for it learns to say nothing else. So a whole number has to be worked out, and an expression that stands in the
    problem is the problem again; `info["undone"]` says so.

    Answers are compared in a grader process with a time limit, so that the environment works in any thread, and an answer that
    no computer can work out is wrong, not the end of the run: `info["scorer_error"]` then says why.
    """

    def __init__(
        self,
        dataset: str,
        split: str | None = None,
        subset: str | None = None,
        question_key: str = "problem",
        answer_key: str = "answer",
        max_turns: int = 1,
        grading_seconds: int = 5,
    ) -> None:
        super().__init__(dataset, split, subset, question_key, answer_key, max_turns)
        self.grading_seconds = whole_number("grading_seconds", grading_seconds, 1)
        if importlib.util.find_spec("math_verify") is None:
            raise MissingDependencyError(
                "comparing maths answers", "math", "the package 'math-verify'"
            )

    def expert(self) -> Iterator[str]:
        """The answer of the data set."""
        yield _last_part(str(self.row[self.answer_key]))

    def grade(self, answer: str) -> Grade:
        right = _last_part(str(self.row[self.answer_key]))
        if _plain(answer) == _plain(right):
            return Grade(1.0)
        if _undone(str(self.row[self.question_key]), answer, right):
            return Grade(0.0, info={"undone": True})
        if len(answer) > _LONGEST:
            return Grade(
                0.0, info={"scorer_error": f"an answer of {len(answer)} characters is not compared"}
            )
        try:
            is_equal = shared_grader("gem_envs.datasets.maths:equal", "1", "\\frac{1}{2}")(
                right, answer, seconds=self.grading_seconds
            )
        except EnvError as error:
            return Grade(0.0, info={"scorer_error": str(error)})
        return Grade(1.0 if is_equal else 0.0)


def equal(right: str, answer: str) -> bool:
    """Whether two answers are the same mathematics. Runs in a grader process, which is where its time limit is."""
    library: Any = importlib.import_module("math_verify")
    parsed = [library.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (right, answer)]
    return bool(library.verify(*parsed, timeout_seconds=None))


def _undone(problem: str, answer: str, right: str) -> bool:
    """Whether an answer leaves the work to the grader."""
    bare = _bare(answer)
    if not _OPERATION.search(bare):
        return False
    return (
        bare in _bare(problem) or re.fullmatch(r"-?\d+", _bare(right).replace(",", "")) is not None
    )


_OPERATION = re.compile(
    r"[*/+!×·÷]|\\(?:times|cdot|div|[dt]?frac|sqrt|[dt]?binom)|[\d)}]-|[\d)}]\^"
)
_HARMLESS = re.compile(
    r"\\left|\\right|\\[,;! ]|[\s$]|\\(?:text|mathrm)\{[^}]*\}(?:\^\{?\d\}?)?|\^\{?\\circ\}?"
)
_SCIENTIFIC = re.compile(r"(?<=\d)(?:\\times|\\cdot|[*×·])10\^\{?-?\d+\}?$")


def _bare(text: str) -> str:
    """Without blanks, brackets' sizes, units, degrees, and the power of ten of a number like 3 x 10^8."""
    return _SCIENTIFIC.sub("", _HARMLESS.sub("", text)).casefold()


def _last_part(answer: str) -> str:
    """GSM8K writes the way to the answer in front of it, with #### between them."""
    return answer.rpartition("####")[2].strip()


def _plain(text: str) -> str:
    return "".join(text.split()).strip("$").casefold()
