"""Frozen transcripts: a hash of the observations and rewards of a suite, for every seed.

The expert plays each environment, the random player where there is no expert. A hash covers every
message, action and reward of an episode, and how it ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources

from gem_core.env.registry import make
from gem_core.policies.players import player_named
from gem_core.rollout.engine import run_batch
from gem_core.rollout.env_pool import close_unused
from gem_core.types import Episode, Task
from gem_eval.models.catalog import unplayable
from gem_eval.suite.suite import Suite

__all__ = ["episode_hash", "frozen_hashes", "replayed_hashes"]


@cache
def frozen_hashes(name: str) -> Mapping[str, list[str]]:
    """Return the hashes of a suite by id, one per seed."""
    file = resources.files("gem_eval.suite").joinpath(f"{name}.json")
    hashes: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    return hashes


def replayed_hashes(id: str, suite: Suite) -> list[str]:
    """Play an environment at the suite's seeds and return the hashes of the episodes."""
    env = make(id)
    player = "random" if unplayable("expert", env) else "expert"
    close_unused(env)
    seeds = range(suite.first_seed, suite.first_seed + suite.seeds)
    tasks = [Task(id, seed, index=number) for number, seed in enumerate(seeds)]
    return [episode_hash(episode) for episode in run_batch(tasks, player_named(player))]


def episode_hash(episode: Episode) -> str:
    """Return a short hash of an episode, or the error of a failed one."""
    if episode.failed:
        return f"failed: {episode.failure}"
    transcript = [
        [[[m.role, m.content] for m in turn.messages], turn.action, turn.reward]
        for turn in episode.turns
    ]
    whole = [transcript, episode.stop.value, episode.final_observation, episode.success]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:12]
