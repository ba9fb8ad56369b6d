"""Mastermind: find a hidden code of digits from black and white pegs."""

from __future__ import annotations

from collections.abc import Mapping
from operator import eq
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.games.base import Game, draws

__all__ = ["Mastermind"]

_RANDOM = ((2, 4, 10), (4, 6, 20), (4, 8, 30))
"""(code_length, num_numbers, max_turns)"""
_NUMBERS = {str(number): number for number in range(1, 100)}


class Mastermind(Game):
    """Mastermind: rewards new black pegs / length over the best guess so far; the code totals 1."""

    @draws("code_length", "num_numbers", "max_turns")
    def __init__(
        self,
        code_length: int = 4,
        num_numbers: int = 6,
        duplicate_numbers: bool = False,
        max_turns: int = 20,
        randomize: bool = False,
    ) -> None:
        self.code_length = whole_number("code_length", code_length, 1, 20)
        self.num_numbers = whole_number("num_numbers", num_numbers, 2, 99)
        if not duplicate_numbers and code_length > num_numbers:
            raise ConfigError(
                f"a code of {code_length} different numbers needs num_numbers >= {code_length}, "
                f"got {num_numbers}"
            )
        self.duplicate_numbers = duplicate_numbers
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.code_length, self.num_numbers, self.max_turns = self.rng.choice(_RANDOM)
        numbers = range(1, self.num_numbers + 1)
        if self.duplicate_numbers:
            self.code = self.rng.choices(numbers, k=self.code_length)
        else:
            self.code = self.rng.sample(numbers, self.code_length)
        self.guessed: set[tuple[int, ...]] = set()
        self.best = 0
        self.action_example = " ".join("n" * self.code_length)
        repeats = (
            "a number may occur more than once"
            if self.duplicate_numbers
            else "no number occurs twice"
        )
        return (
            f"I have a secret code of {self.code_length} numbers, "
            f"each from 1 to {self.num_numbers}; {repeats}. You have {self.max_turns} guesses. "
            "After each guess I count black pegs (right number, right place) "
            "and white pegs (right number, wrong place). "
            "Write the numbers with blanks between them.",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        words = action.split()
        if len(words) == 1 and self.num_numbers <= 9 and len(words[0]) == self.code_length:
            words = list(words[0])  # digits without spaces are unambiguous
        guess = [_NUMBERS.get(word, 0) for word in words]
        if not words or (
            0 in guess and not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words)
        ):
            return self.unreadable(action, f"a guess of {self.code_length} numbers")
        if len(guess) != self.code_length:
            return self.carry_on(
                f"That is a guess of {len(guess)} number(s); the code has {self.code_length}."
            )
        shown = " ".join(words)
        if min(guess) < 1 or max(guess) > self.num_numbers:
            return self.carry_on(f"{shown} has a number outside 1 to {self.num_numbers}.")
        key = tuple(guess)
        if key in self.guessed:
            return self.carry_on(f"{shown} was guessed before.")
        self.guessed.add(key)
        black, white = self._pegs(guess)
        reward = 0.0
        if black > self.best:
            reward = (black - self.best) / self.code_length
            self.best = black
        if black == self.code_length:
            return self.won(f"Yes, the code is {shown}.", reward)
        return self.carry_on(f"{shown}: {black} black, {white} white.", reward)

    def _pegs(self, guess: list[int]) -> tuple[int, int]:
        code = self.code
        black = sum(map(eq, guess, code))
        if self.duplicate_numbers:
            shared = sum(min(guess.count(n), code.count(n)) for n in set(code))
        else:
            shared = sum(map(guess.__contains__, code))
        return black, shared - black

    def sample_action(self) -> str:
        numbers = range(1, self.num_numbers + 1)
        for _ in range(100):
            guess = tuple(self.action_rng.choices(numbers, k=self.code_length))
            if guess not in self.guessed:
                break
        return " ".join(map(str, guess))
