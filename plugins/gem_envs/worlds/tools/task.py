"""Tool task environment: reach a goal by calling functions, then finish."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_envs.games.base import Game
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, parse_call, write_call

__all__ = ["Goal", "ToolTask", "is_answer"]

_LONGEST_RESULT = 4000
_FINISH = "finish"
_LONGEST_SAMPLED = 40


@dataclass(frozen=True)
class Goal:
    """A goal in words, the calls that reach it, and the answer that `finish` must give."""

    text: str
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    answer: Any = None
    """None if the goal is a change of the data."""


class ToolTask(Game):
    """A task over functions; the reward is 1 if `finish` finds the right answer and data.

    Subclasses set `goals`: functions that draw a goal from a toolbox. The data must be as the
    goal's own calls leave them, so a task that changes more than it should earns nothing.
    """

    goals: ClassVar[Sequence[Callable[..., Goal]]]
    topic: ClassVar[str]
    action_example = 'finish with Action Input: {"answer": "42"}'

    def __init__(self, max_turns: int = 15) -> None:
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def draw_toolbox(self, rng: random.Random) -> Any:
        """Draw the data of an episode."""
        raise NotImplementedError

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        self.toolbox: Toolbox = self.draw_toolbox(self.rng)
        before = copy.deepcopy(self.toolbox.state())
        while True:
            draw = self.rng.choice(self.goals)
            self.goal = draw(self.toolbox, self.rng)
            self.expected = self._state_after(self.goal)
            if self.goal.answer is not None or self.expected != before:
                break
        self.seen = self.goal.text.split()
        return (
            f"You help a user with {self.topic}. An action calls one function, in this form:\n"
            f"{write_call('FUNCTION', {'PARAMETER': 'value'})}\n\n"
            f"Functions:\n{self.toolbox.describe()}\n"
            'finish(answer): ends the task; answer is the answer to a question, or "done".\n\n'
            f"You have {self.max_turns} turns.\n\nGoal: {self.goal.text}",
            {"goal": self.goal.text},
        )

    def _state_after(self, goal: Goal) -> Any:
        """Return the data after the goal's own calls."""
        if self.toolbox.state() is None:  # the functions only read
            return None
        solved = copy.deepcopy(self.toolbox)
        for name, arguments in goal.calls:
            solved.call(name, arguments)
        return solved.state()

    def on_step(self, action: str) -> StepResult:
        try:
            name, arguments = parse_call(action)
            if name == _FINISH:
                return self._finish(arguments)
            result = self.toolbox.call(name, arguments)
        except CallError as error:
            return self.carry_on(f"Error: {error}.", call_error=True)
        self.seen += [text for text in _texts(result) if len(text) <= _LONGEST_SAMPLED]
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        if len(text) > _LONGEST_RESULT:
            text = f"{text[:_LONGEST_RESULT]}... ({len(text)} characters)"
        return self.carry_on(text, call_error=False)

    def _finish(self, arguments: Mapping[str, Any]) -> StepResult:
        if set(arguments) != {"answer"}:
            raise CallError("finish takes (answer)")
        right = self.goal.answer is None or is_answer(arguments["answer"], self.goal.answer)
        if right and self.toolbox.state() == self.expected:
            return self.won("The goal is reached.")
        return self.lost("The goal is not reached.")

    def sample_action(self) -> str:
        """Call a function, or finish with a number.

        Functions without arguments are preferred. Where there are none, the arguments are texts
        that the goal or an earlier result contains.
        """
        rng = self.action_rng
        free = [write_call(name, {}) for name in self.toolbox.free_functions()]
        if rng.random() < 0.8:
            return rng.choice(free) if free else self._sample_call()
        return write_call(_FINISH, {"answer": rng.randint(0, 20)})

    def _sample_call(self) -> str:
        name, declared = self.action_rng.choice(list(self.toolbox.declared.items()))
        return write_call(name, {p: self._sample(kind) for p, kind in declared.parameters.items()})

    def _sample(self, kind: type) -> Any:
        if kind is str:
            return self.action_rng.choice(self.seen)
        return [] if kind is list else kind(self.action_rng.randint(0, 20))

    def expert(self) -> Iterator[str]:
        """Make the goal's calls, then finish."""
        for name, arguments in self.goal.calls:
            yield write_call(name, arguments)
        answer = "done" if self.goal.answer is None else self.goal.answer
        yield write_call(_FINISH, {"answer": answer})


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts inside a result."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def is_answer(given: Any, gold: Any) -> bool:
    """Whether an answer equals the gold answer: names without case, numbers within 0.011."""
    if isinstance(gold, (list, tuple)):
        parts = given.split(",") if isinstance(given, str) else given
        if not isinstance(parts, list) or len(parts) != len(gold):
            return False
        return sorted(map(_plain, parts)) == sorted(map(_plain, gold))
    if isinstance(gold, (int, float)):
        try:
            number = float(given) if isinstance(given, (str, int, float)) else math.nan
        except (ValueError, OverflowError):
            return False
        return not isinstance(given, bool) and abs(number - gold) <= 0.011
    return isinstance(given, (str, int, float)) and _plain(given) == _plain(gold)


def _plain(value: Any) -> str:
    return " ".join(str(value).casefold().split()).strip(" .\"'")
