"""Transcripts: an episode of a baseline player, short enough for a page."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

__all__ = ["PROGRAMS", "Transcript", "play"]

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
    from gem_envs.cli.transcript import transcript_of

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
    return Transcript(transcript_of(episode), "expert" if expert else "random")
