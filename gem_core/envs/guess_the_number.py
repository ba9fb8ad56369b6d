"""GuessTheNumber: find a hidden whole number from the hints "higher" and "lower"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gem_core.env import ResetResult, StepResult
from gem_core.envs.game import Game, whole_number
from gem_core.errors import ConfigError

__all__ = ["GuessTheNumber"]

_SMALL = {str(number): number for number in range(1000)}
"""What nearly every guess is found in: reading a number takes longer than the rest of a step."""


class GuessTheNumber(Game):
    """1 for the number, 0 for a miss. The reference pays up to 0.98 for a last guess that is near, so that an agent earns
    almost as much by ending beside the number as by finding it."""

    action_example = "n"

    def __init__(self, min_number: int = 1, max_number: int = 10, max_turns: int = 4, randomize: bool = False) -> None:
        whole_number("min_number", min_number, 0)
        whole_number("max_number", max_number, 0)
        if max_number <= min_number:
            raise ConfigError(f"max_number must be above min_number; given: {min_number} and {max_number}")
        self.min_number, self.max_number = min_number, max_number
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.min_number = self.rng.randint(1, 10)
            self.max_number = self.rng.randint(self.min_number + 5, self.min_number + 50)
            self.max_turns = math.ceil(math.sqrt(self.max_number - self.min_number)) + 1
        self.secret = self.min_number + self.draw(self.max_number - self.min_number + 1)
        return (
            f"I am thinking of a whole number between {self.min_number} and {self.max_number}. You have "
            f"{self.max_turns} guesses. "
            "After each wrong guess I say whether my number is higher or lower.",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        guess = _SMALL.get(action)
        if guess is None:
            text = action.strip()
            if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
                return self.unreadable(action, "a whole number")
            guess = int(text)
        if guess == self.secret:
            return self.won(f"Yes, my number is {guess}.")
        if not self.min_number <= guess <= self.max_number:
            said = f"{guess} is not between {self.min_number} and {self.max_number}."
        else:
            said = f"My number is {'higher' if self.secret > guess else 'lower'} than {guess}."
        if len(self._actions) + 1 < self.max_turns:
            return said, 0.0, False, False, {}
        return self.carry_on(said)

    def sample_action(self) -> str:
        return str(self.action_rng.randint(self.min_number, self.max_number))
