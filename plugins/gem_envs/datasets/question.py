"""Question: an environment that asks one thing and grades the answer, once or with further tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import OptionError

__all__ = ["Grade", "Question"]


@dataclass(frozen=True, slots=True)
class Grade:
    """What an answer is worth."""

    value: float
    """From 0 to 1; 1 is right."""
    said: str = ""
    """What the model is told beyond right or wrong, never the answer itself."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`scorer_error` says why an answer could not be scored; it is then worth 0."""


class Question(Env):
    """The base: subclasses say how many tasks there are, pose one and grade an answer.

    The seed draws a task; the option `index` names one, for evaluation. With `max_turns` above 1 a wrong answer is said to be
    wrong and may be tried again; only what is better than the best answer so far is paid, so that the sum stays within 1.
    """

    execution = "thread"
    option_names = frozenset({"index"})
    action_example = "answer"

    def __init__(self, max_turns: int = 1) -> None:
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def count(self) -> int:
        """How many tasks there are."""
        raise NotImplementedError

    def pose(self, index: int) -> str:
        """The text of a task, which becomes the one that is graded."""
        raise NotImplementedError

    def grade(self, answer: str) -> Grade:
        """What an answer to the task is worth."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        count = self.count()
        index = options.get("index")
        if index is None:
            index = self.rng.randrange(count)
        elif isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise OptionError(
                f"index must be a whole number from 0 to {count - 1}; given: {index!r}"
            )
        self.best = 0.0
        text = self.pose(index)
        if self.max_turns > 1:
            text = f"{text}\nYou have {self.max_turns} tries."
        return text, {"index": index}

    def on_step(self, action: str) -> StepResult:
        grade = self.grade(action)
        reward = max(0.0, grade.value - self.best)
        self.best = max(self.best, grade.value)
        info = dict(grade.info)
        if grade.value >= 1.0:
            return "That is right.", reward, True, False, {"success": True, **info}
        said = f"That is not right. {grade.said}".rstrip()
        if self.max_turns == 1:
            return said, reward, True, False, {"success": False, **info}
        if self.turn + 1 < self.max_turns:
            return f"{said} Try again.", reward, False, False, info
        return (
            f"{said} That was the last of {self.max_turns} tries.",
            reward,
            False,
            True,
            {"success": False, **info},
        )

    def sample_action(self) -> str:
        return str(self.action_rng.randint(0, 9))
