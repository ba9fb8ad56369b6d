"""Anagram game: unscramble a word. Each miss reveals one more letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core import Env
from gem_core.errors import ConfigError

__all__ = ["Anagram"]

_WORDS = {
    5: (
        "apple",
        "brick",
        "candy",
        "dance",
        "fjord",
        "grape",
        "house",
        "knife",
        "lemon",
        "mango",
        "nurse",
        "ocean",
    ),
    7: (
        "blanket",
        "captain",
        "dolphin",
        "fiction",
        "gravity",
        "harvest",
        "journal",
        "kitchen",
        "lantern",
        "mineral",
    ),
}


class Anagram(Env):
    """Reward 1 for the word at the first try, a third less for each miss."""

    execution = "inline"  # microseconds of pure Python do not need a thread
    action_example = "word"
    tries = 3

    def __init__(self, letters: int = 5) -> None:
        if letters not in _WORDS:
            raise ConfigError(f"letters must be one of {sorted(_WORDS)}; got {letters!r}")
        self.letters = letters

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        self.word = self.rng.choice(_WORDS[self.letters])
        scrambled = list(self.word)
        while "".join(scrambled) == self.word:
            self.rng.shuffle(scrambled)
        letters = " ".join(scrambled)
        return f"Which English word has the letters {letters}? You have {self.tries} tries.", {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        misses = self.turn  # every turn before this one was a miss
        if action.strip().lower() == self.word:
            return f"Yes, {self.word}.", 1.0 - misses / self.tries, True, False, {"success": True}
        if misses + 1 == self.tries:
            return f"No. It was {self.word}.", 0.0, True, False, {"success": False}
        return f"No. It begins with {self.word[: misses + 1]}.", 0.0, False, False, {}

    def sample_action(self) -> str:
        return self.action_rng.choice(_WORDS[self.letters])
