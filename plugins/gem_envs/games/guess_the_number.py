"""GuessTheNumber: find a hidden whole number from the hints "higher" and "lower"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws

__all__ = ["GuessTheNumber"]


class GuessTheNumber(Game):
    """Guess the number: a reward of 1 for the number and 0 for a miss.

    GEM gives up to 0.98 for a near last guess, almost as much as for the number.
    """

    action_example = "n"

    @draws("min_number", "max_number", "max_turns")
    def __init__(
        self, min_number: int = 1, max_number: int = 10, max_turns: int = 4, randomize: bool = False
    ) -> None:
        whole_number("min_number", min_number, 0)
        whole_number("max_number", max_number, 0)
        if max_number <= min_number:
            raise ConfigError(
                f"max_number must be greater than min_number {min_number}, got {max_number}"
            )
        self.randomize = randomize
        self._choose(min_number, max_number, whole_number("max_turns", max_turns, 1))
        self.secret = min_number  # until `on_reset` draws one

    def _choose(self, min_number: int, max_number: int, max_turns: int) -> None:
        self.min_number, self.max_number, self.max_turns = min_number, max_number, max_turns
        self._question = (
            f"I am thinking of a whole number between {min_number} and {max_number}. "
            f"You have {max_turns} guesses. "
            "After each wrong guess I say whether my number is higher or lower."
        )

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            min_number = self.rng.randint(1, 10)
            max_number = self.rng.randint(min_number + 5, min_number + 50)
            self._choose(min_number, max_number, math.ceil(math.sqrt(max_number - min_number)) + 1)
        self.secret = self.rng.randint(self.min_number, self.max_number)
        return self._question, {}

    def on_step(self, action: str) -> StepResult:
        text = action.strip()
        number = text.isdigit() or text.removeprefix("-").isdigit()
        if not (number and text.isascii() and len(text) < 20):
            return self.unreadable(action, "a whole number")
        guess, secret = int(text), self.secret
        if guess == secret:
            return self.won(f"Yes, my number is {guess}.")
        if secret > guess >= self.min_number:
            return self.carry_on(f"My number is higher than {guess}.")
        if secret < guess <= self.max_number:
            return self.carry_on(f"My number is lower than {guess}.")
        return self.carry_on(f"{guess} is not between {self.min_number} and {self.max_number}.")

    def sample_action(self) -> str:
        return str(self.action_rng.randint(self.min_number, self.max_number))
