"""Transcripts: an episode of a baseline player, short enough for a page."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from typing import Any

__all__ = ["PROGRAMS", "Transcript", "play"]

_WIDTH = 100
_LINES = 24
"""Lines that are shown of one text."""
_FIRST, _LAST = 4, 1
"""Turns that are shown of a long episode."""
PROGRAMS = {"sciworld": "java", "textworld": "java", "terminal": "bwrap", "web": "chromium"}
"""The program that a namespace needs on the machine."""


@dataclass(frozen=True)
class Transcript:
    """An episode as text, or the reason why it was not played."""

    text: str = ""
    player: str = ""
    missing: str = ""


def play(env_id: str, seed: int) -> Transcript:
    """Play one episode with the environment's expert, or with random actions if it has none."""
    from gem_core import make, run_episode
    from gem_core.errors import MissingDependencyError
    from gem_core.policies.players import ExpertPlayer, RandomPlayer, expert_of

    program = PROGRAMS.get(env_id.partition(":")[0])
    if program and shutil.which(program) is None:
        return Transcript(missing=f"the program `{program}`")
    try:
        env = make(env_id)
    except MissingDependencyError as error:
        return Transcript(missing=str(error))
    try:
        expert = expert_of(env) is not None
        episode = run_episode(env, ExpertPlayer() if expert else RandomPlayer(), seed=seed)
    finally:
        env.close()
    if episode.failed:
        raise RuntimeError(f"{env_id} with seed {seed} failed: {episode.failure}")
    return Transcript(_shown(episode), "expert" if expert else "random")


def _shown(episode: Any) -> str:
    turns = list(enumerate(episode.turns))
    long = len(turns) > _FIRST + _LAST + 1
    parts = []
    for number, turn in turns:
        if long and _FIRST <= number < len(turns) - _LAST:
            if number == _FIRST:
                parts.append(f"... {len(turns) - _FIRST - _LAST} turns\n")
            continue
        parts += [_labelled(message.role, message.content) for message in turn.messages]
        parts.append(_labelled("model", turn.action))
        parts.append(f"reward: {turn.reward:.3g}\n")
    parts.append(_labelled("user", episode.final_observation))
    total = episode.total_reward
    parts.append(f"{episode.stop.value} after {len(turns)} turns, return {total:.3g}")
    return "\n".join(parts)


def _labelled(role: str, text: str) -> str:
    lines = [
        short
        for line in text.strip("\n").splitlines()
        for short in (textwrap.wrap(line, _WIDTH - 4, replace_whitespace=False) or [""])
    ]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"... {len(lines) - _LINES + 1} more lines"]
    return f"{role}:\n" + "\n".join(f"    {line}".rstrip() for line in lines)
