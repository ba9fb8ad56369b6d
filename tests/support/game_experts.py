"""Game experts for tests: look up the expert of an id, and play an episode."""

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
    """Return the expert of a game by the id of any variant."""
    name = id.removeprefix("game:").split("-v0")[0]
    return EXPERTS[name.replace("TowerofHanoi", "TowerOfHanoi")]


def play(
    env: Env, seed: int, expert: Callable[[Any], Iterator[str]] | None = None
) -> tuple[list[float], dict[str, Any], bool]:
    """Play one episode by an expert or at random; return the rewards, last info and truncated."""
    env.reset(seed=seed)
    actions = expert(env.unwrapped) if expert else None
    rewards: list[float] = []
    while True:
        action = env.sample_action() if actions is None else f"I think \\boxed{{{next(actions)}}}"
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info, truncated
