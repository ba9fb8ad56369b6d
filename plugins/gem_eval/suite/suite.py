"""Suite: a frozen list of environment ids by family, with fixed seeds.

A change of an id, a seed or the text of a first observation makes a new suite with a new name.
`fingerprint` detects the last of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gem_core.env.registry import make
from gem_core.errors import ConfigError, MissingDependencyError, UnknownNameError
from gem_core.policies.players import PLAYERS, unplayable
from gem_core.rollout.env_pool import close_unused

__all__ = ["SUITES", "Suite", "fingerprint", "missing_ids", "suite_named", "unplayable_ids"]


@dataclass(frozen=True)
class Suite:
    """A named set of environments and seeds."""

    name: str
    families: Mapping[str, tuple[str, ...]]
    first_seed: int
    seeds: int

    @property
    def ids(self) -> tuple[str, ...]:
        """All environment ids, family by family."""
        return tuple(id for ids in self.families.values() for id in ids)

    def family_of(self, id: str) -> str:
        """Return the family of an id."""
        return next(family for family, ids in self.families.items() if id in ids)

    def only(self, families: Iterable[str]) -> Suite:
        """Return the suite with some of its families."""
        chosen = {}
        for family in families:
            if family not in self.families:
                raise UnknownNameError(f"family of {self.name}", family, tuple(self.families))
            chosen[family] = self.families[family]
        return replace(self, families=chosen)

    def without(self, ids: Iterable[str]) -> Suite:
        """Return the suite without some ids, and without families that become empty."""
        left_out = set(ids)
        rest = {
            family: tuple(id for id in members if id not in left_out)
            for family, members in self.families.items()
        }
        families = {family: members for family, members in rest.items() if members}
        return replace(self, families=families)


GEM_EVAL_V1 = Suite(
    "gem-eval-v1",
    {
        "games": (
            "game:GuessTheNumber-v0-hard",
            "game:Mastermind-v0-easy",
            "game:Minesweeper-v0-easy",
            "game:Wordle-v0-easy",
            "game:Hangman-v0-easy",
            "game:Sudoku-v0-easy",
            "game:Sokoban-v0-easy",
        ),
        "reasoning": (
            "rg:chain_sum",
            "rg:letter_counting",
            "rg:family_relationships",
            "rg:number_sorting",
        ),
        "questions": ("math:Sample-v0", "qa:Sample-v0", "logic:Sample-v0", "code:Sample-v0"),
        "grids": (
            "babyai:GoToRedBall-v0",
            "babyai:PickupLoc-v0",
            "babyai:Unlock-v0",
            "maze:DoubleT-v0",
            "maze:Random-v0",
        ),
        "text worlds": (
            "textcraft:TextCraft-v0-depth2",
            "sciworld:find-plant",
            "sciworld:use-thermometer",
            "textworld:CoinCollector-v0",
            "textworld:CookingWorld-v0",
            "household:PickAndPlace-v0",
            "household:HeatAndPlace-v0",
        ),
        "sql": ("sql:Query-v0-simple", "sql:Query-v0-challenging"),
        "tools": (
            "tool:Weather-v0",
            "tool:Movie-v0",
            "tool:Academia-v0",
            "tool:Sheet-v0",
            "tool:Todo-v0",
        ),
        "search": (
            "search:DeepSearch-v0",
            "search:MultiHop-v0-hops3",
            "wiki:WikiGame-v0",
            "webshop:WebShop-v0",
        ),
        "computer": ("web:Shop-v0", "terminal:CountErrors-v0"),
    },
    # Recipes train on seeds from 0 on.
    first_seed=1_000_000,
    seeds=10,
)
SUITES = {suite.name: suite for suite in (GEM_EVAL_V1,)}


def suite_named(name: str) -> Suite:
    """Return a suite by name."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, tuple(SUITES))
    return SUITES[name]


def missing_ids(suite: Suite) -> dict[str, str]:
    """Return the ids whose packages or programs are missing, with the reason."""
    missing = {}
    for id in suite.ids:
        try:
            close_unused(make(id))
        except (MissingDependencyError, ConfigError) as error:  # the latter: bubblewrap, git, make
            missing[id] = str(error)
    return missing


def unplayable_ids(suite: Suite, player: str) -> list[str]:
    """Return the ids that a baseline player cannot play, for example without an expert."""
    unable = []
    for id in suite.ids if player in PLAYERS else ():
        env = make(id)
        if unplayable(player, env):
            unable.append(id)
        close_unused(env)
    return unable


def fingerprint(id: str, suite: Suite) -> str:
    """Return a hash of the first observations of an id at the suite's seeds."""
    env: Any = make(id)
    digest = hashlib.sha256()
    for seed in range(suite.first_seed, suite.first_seed + suite.seeds):
        observation, _ = env.reset(seed=seed)
        digest.update(observation.encode("utf-8", "replace") + b"\x00")
    close_unused(env)
    return digest.hexdigest()[:16]
