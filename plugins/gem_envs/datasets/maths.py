"""Maths: a problem with one correct answer, compared symbolically by math-verify."""

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
"""Maximum number of characters of an answer that is compared."""


class Maths(DatasetQuestion):
    """Maths problem: a reward of 1 for an equal answer; 1/2, 0.5 and \\frac{1}{2} are equal.

    An answer that only repeats the problem gives 0 and sets `info["undone"]`, because a model
    rewarded for copying learns to copy: 12 * 34 does not answer "What is 12 * 34?", and x^2 - 9
    does not answer "Factor x^2 - 9". If the correct answer is a whole number, the answer must be
    written as one; an expression copied from the problem is always rejected, as is a decimal copied
    from the problem if the correct answer is a fraction.

    A grader process compares the answers under a time limit, which works in any thread. An answer
    that cannot be evaluated in time is wrong; `info["scorer_error"]` has the reason.
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
        """Yield the answer from the dataset."""
        yield _final_answer(str(self.row[self.answer_key]))

    def grade(self, answer: str) -> Grade:
        expected = _final_answer(str(self.row[self.answer_key]))
        if _plain(answer) == _plain(expected):
            return Grade(1.0)
        if _is_undone(str(self.row[self.question_key]), answer, expected):
            return Grade(0.0, info={"undone": True})
        if len(answer) > _LONGEST:
            return Grade(
                0.0, info={"scorer_error": f"an answer of {len(answer)} characters is not compared"}
            )
        grader = shared_grader("gem_envs.datasets.maths:equal", "1", "\\frac{1}{2}")
        try:
            is_equal = grader(expected, answer, seconds=self.grading_seconds)
        except EnvError as error:
            return Grade(0.0, info={"scorer_error": str(error)})
        return Grade(1.0 if is_equal else 0.0)


def equal(expected: str, answer: str) -> bool:
    """Whether two answers are mathematically equal.

    Runs in a grader process, which enforces the time limit.
    """
    library: Any = importlib.import_module("math_verify")
    parsed = [
        library.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (expected, answer)
    ]
    return bool(library.verify(*parsed, timeout_seconds=None))


def _is_undone(problem: str, answer: str, expected: str) -> bool:
    """Whether an answer leaves the computation to the grader."""
    bare, bare_expected = _bare(answer), _bare(expected)
    if re.fullmatch(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)", bare_expected):  # -1,2 is two numbers
        is_expression = re.search(r"[\d\\]", bare) is not None
        name, _, number = bare.rpartition("=")
        asked = name in _bare(problem) and not re.search(r"\d|^[−–-]", name)  # m+n = 5
        is_name = asked or _NAME.fullmatch(name) is not None
        return is_expression and not (is_name and _WHOLE_NUMBER.fullmatch(number))
    if _DECIMAL.fullmatch(bare) and _FRACTION.search(bare_expected):
        return bare in _bare(problem)
    return _OPERATION.search(bare) is not None and bare in _bare(problem)


_COMPUTED = r"times|cdot|div|[cdt]?frac|sqrt|[dt]?binom|log|ln|lg|exp|sin|cos|tan|sec|csc|cot"
"""Commands that compute: the log of x is not x."""
_OPERATION = re.compile(
    rf"[*/+!×·÷|]|[\d)}}]-|[\d)}}]\^"
    rf"|\\(?:{_COMPUTED}|lim|det|int|sum|prod|gcd|lcm|max|min|operatorname)"
)
_NAME = re.compile(  # x_1, \angle A
    rf"(?:(?!\\(?:{_COMPUTED}))[^\d=+*/^!×·÷√|−–-]|_\{{?\d)*"
)
_WHOLE_NUMBER = re.compile(
    r"(?:\\?[-−+({\[]|\\(?=\d)|\\(?:math|text)?(?:bf|rm|boxed))*"  # signs, brackets, \$
    r"\d(?:[\d,]|\{,\})*(?:\.\d*)?(?:\\?[)}\]%])*"
    r"(?:[a-z]+(?:\^\{?\d\}?)?)?\.?"  # a unit
)
_DECIMAL = re.compile(r"-?\d*\.\d+")
_FRACTION = re.compile(r"/|\\[dt]?frac")
_HARMLESS = re.compile(
    r"\\left|\\right|\\q?quad|\\[,;! ]|[\s$]"
    r"|\\(?:text|mathrm)\{[^}]*\}(?:\^\{?\d\}?)?|\^\{?\\circ\}?"
)
_SCIENTIFIC = re.compile(r"(?<=\d)(?:\\times|\\cdot|[*×·])10\^\{?-?\d+\}?$")


def _bare(text: str) -> str:
    """Strip whitespace, bracket sizes, units, degrees and the power of ten of 3 x 10^8."""
    return _SCIENTIFIC.sub("", _HARMLESS.sub("", text)).casefold()


def _final_answer(answer: str) -> str:
    """Return the text after ####; GSM8K writes the reasoning before it."""
    return answer.rpartition("####")[2].strip()


def _plain(text: str) -> str:
    return "".join(text.split()).strip("$").casefold()
