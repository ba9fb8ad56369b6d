"""Hangman: find a hidden word letter by letter, or all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_envs.games.base import Game, draws
from gem_envs.games.words import LONGEST, SHORTEST, common_words, more_words

__all__ = ["Hangman"]

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_RANDOM = ((3, 10), (5, 15), (7, 20))
"""(word_length, max_turns)"""


class Hangman(Game):
    """Hangman: a reward of 0.5 * revealed letters / length, and 0.5 for the whole word.

    The word counts when its last letter is revealed or when it is guessed at once. The total is 1.
    `hardcore` draws less common words.
    """

    action_example = "a letter or the word"

    @draws("word_length", "max_turns")
    def __init__(
        self,
        word_length: int = 5,
        hardcore: bool = False,
        max_turns: int = 20,
        randomize: bool = False,
    ) -> None:
        self.word_length = whole_number("word_length", word_length, SHORTEST, LONGEST)
        self.hardcore = hardcore
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.randomize = randomize

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.word_length, self.max_turns = self.rng.choice(_RANDOM)
        words = more_words(self.word_length) if self.hardcore else common_words(self.word_length)
        self.secret = self.rng.choice(words)
        self.shown = ["_"] * self.word_length
        self.tried: set[str] = set()
        return (
            f"Hangman: I have a secret English word of {self.word_length} letters. "
            "Guess one letter, and I show every place it stands in, or guess the whole word. "
            f"You have {self.max_turns} guesses.\n"
            f"{' '.join(self.shown)}",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        guess = action.strip().upper()
        if not (guess.isascii() and guess.isalpha() and len(guess) <= 40):
            return self.unreadable(action, "a letter or a word")
        if guess in self.tried:
            return self._answer(f"{guess} was guessed before.")
        if len(guess) == 1:
            return self._letter(guess)
        if guess == self.secret:
            return self.won(
                f"Yes, the word is {guess}.", 0.5 + 0.5 * self.shown.count("_") / self.word_length
            )
        if len(guess) != self.word_length:
            return self._answer(
                f"{guess} has {len(guess)} letters; the word has {self.word_length}."
            )
        self.tried.add(guess)
        return self._answer(f"{guess} is not the word.")

    def _letter(self, letter: str) -> StepResult:
        self.tried.add(letter)
        places = self.secret.count(letter)
        if not places:
            return self._answer(f"{letter} is not in the word.")
        self.shown = [
            letter if real == letter else mark
            for mark, real in zip(self.shown, self.secret, strict=True)
        ]
        reward = 0.5 * places / self.word_length
        if "_" not in self.shown:
            return self.won(f"Yes, the word is {self.secret}.", reward + 0.5)
        return self._answer(f"{letter} is in the word.", reward)

    def _answer(self, feedback: str, reward: float = 0.0) -> StepResult:
        return self.carry_on(f"{feedback}\n{' '.join(self.shown)}", reward)

    def sample_action(self) -> str:
        untried = [letter for letter in _ALPHABET if letter not in self.tried]
        return self.action_rng.choice(untried) if untried else self.secret
