"""Wordle: find a hidden word from green, yellow and missing letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_envs.games.base import Game, draws
from gem_envs.games.words import LONGEST, SHORTEST, common_words, is_word

__all__ = ["Wordle"]


class Wordle(Game):
    """Wordle: 0.5 / length for each newly green letter, and 0.5 for the word, 1 in total.

    The secret is a common word. With `only_real_words` a guess outside the word lists costs the
    turn and shows no marks.
    """

    action_example = "your guess"  # not a word, so it can never be the secret

    @draws("word_length", "max_turns")
    def __init__(
        self,
        word_length: int = 5,
        only_real_words: bool = True,
        max_turns: int = 20,
        randomize: bool = False,
    ) -> None:
        self.word_length = whole_number("word_length", word_length, SHORTEST, LONGEST)
        self.only_real_words = only_real_words
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.randomize = randomize

    @property
    def vocabulary(self) -> list[str]:
        """The words that may be the secret."""
        return list(common_words(self.word_length))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self.randomize:
            self.word_length = self.rng.randint(3, 5)
            self.max_turns = 5 * self.word_length
        self.secret = self.rng.choice(common_words(self.word_length))
        self.guessed: set[str] = set()
        self.green = [False] * self.word_length
        real = " A guess must be an English word." if self.only_real_words else ""
        return (
            f"Wordle: I have a secret English word of {self.word_length} letters. "
            f"You have {self.max_turns} guesses.{real} "
            "I mark each letter of a guess: G, it is in this place; "
            "Y, it is in the word, but in another place; "
            "X, it is not in the word (or not once more).",
            {},
        )

    def on_step(self, action: str) -> StepResult:
        guess = action.upper()
        if len(guess) != self.word_length or not is_word(guess) or guess in self.guessed:
            guess = "".join(guess.split())
            if not (guess.isascii() and guess.isalpha() and len(guess) <= 40):
                return self.unreadable(action, f"a word of {self.word_length} letters")
            if len(guess) != self.word_length:
                return self.carry_on(
                    f"{guess} has {len(guess)} letters; the word has {self.word_length}."
                )
            if guess in self.guessed:
                return self.carry_on(f"{guess} was guessed before.")
            if self.only_real_words and not is_word(guess):
                return self.carry_on(f"{guess} is not in my list of English words.")
        self.guessed.add(guess)
        marks, new_greens = self._marks(guess)
        reward = 0.5 * new_greens / self.word_length
        if guess == self.secret:
            return self.won(f"Yes, the word is {guess}.", reward + 0.5)
        return self.carry_on(f"{' '.join(guess)}\n{' '.join(marks)}", reward)

    def _marks(self, guess: str) -> tuple[list[str], int]:
        """Return the marks of a guess and the number of newly green places."""
        marks, unmatched, new_greens = [], [], 0
        for place, secret_letter in enumerate(self.secret):
            if guess[place] == secret_letter:
                marks.append("G")
                if not self.green[place]:
                    self.green[place] = True
                    new_greens += 1
            else:
                marks.append("X")
                unmatched.append(secret_letter)
        for place, letter in enumerate(guess):
            if letter in unmatched and marks[place] == "X":
                marks[place] = "Y"
                unmatched.remove(letter)  # each letter of the secret is marked once
        return marks, new_greens

    def sample_action(self) -> str:
        words = common_words(self.word_length)
        for _ in range(100):
            word = self.action_rng.choice(words)
            if word not in self.guessed:
                break
        return word
