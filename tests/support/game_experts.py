"""Game experts in the tests: the expert of an id, and one episode played by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gem_core.env.base import Env
from gem_envs.games.experts import EXPERTS

__all__ = ["GAMES", "expert_for", "play"]

GAMES = (
    "Crosswords", "FifteenPuzzle", "Game2048", "GuessTheNumber", "Hangman", "Mastermind",
    "Minesweeper", "Sokoban", "Sudoku", "TowerofHanoi", "WordSearch", "Wordle",
)  # fmt: skip


def expert_for(id: str) -> Callable[[Any], Iterator[str]]:
    """The expert of a game by the id of any of its variants."""
    name = id.removeprefix("game:").split("-v0")[0]
    return EXPERTS[name.replace("TowerofHanoi", "TowerOfHanoi")]


def play(
    env: Env, seed: int, expert: Callable[[Any], Iterator[str]] | None = None
) -> tuple[list[float], dict[str, Any], bool]:
    r"""One episode, boxed, by an expert or at random: the rewards, the last info, and whether the turn limit cut it."""
    env.reset(seed=seed)
    actions = expert(env.unwrapped) if expert else None
    rewards: list[float] = []
    while True:
        action = env.sample_action() if actions is None else f"I think \\boxed{{{next(actions)}}}"
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info, truncated
