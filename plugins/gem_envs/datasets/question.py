"""Question: an environment that poses one task and grades the answer, with one or more tries."""

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
    """The score of an answer, with feedback for the model."""

    value: float
    """Score from 0 to 1; 1 is correct."""
    feedback: str = ""
    """Text for the model beyond right or wrong. Never contains the answer."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Extra `info` of the step. `scorer_error` is the reason why an answer was not scored."""


class Question(Env):
    """Base class: subclasses implement `count`, `pose` and `grade`.

    The seed draws a task; the reset option `index` selects one, for evaluation. With `max_turns`
    above 1 the model may retry after a wrong answer. The reward is the improvement over the best
    answer so far, which bounds the return by 1.
    """

    execution = "thread"
    option_names = frozenset({"index"})
    action_example = "answer"

    def __init__(self, max_turns: int = 1) -> None:
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def count(self) -> int:
        """Return the number of tasks."""
        raise NotImplementedError

    def pose(self, index: int) -> str:
        """Make a task the current one and return its text."""
        raise NotImplementedError

    def grade(self, answer: str) -> Grade:
        """Grade an answer to the current task."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        count = self.count()
        index = options.get("index")
        if index is None:
            index = self.rng.randrange(count)
        elif isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise OptionError(f"index must be an integer from 0 to {count - 1}, got {index!r}")
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
        feedback = f"That is not right. {grade.feedback}".rstrip()
        if self.max_turns == 1:
            return feedback, reward, True, False, {"success": False, **info}
        if self.turn + 1 < self.max_turns:
            return f"{feedback} Try again.", reward, False, False, info
        return (
            f"{feedback} That was the last of {self.max_turns} tries.",
            reward,
            False,
            True,
            {"success": False, **info},
        )

    def sample_action(self) -> str:
        return str(self.action_rng.randint(0, 9))
