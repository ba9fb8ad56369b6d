"""Suite: a frozen list of environment ids by family, with fixed seeds.

A change of an id, a seed, an observation or a reward makes a new suite with a new name.
`gem_eval.suite.transcripts` detects the last of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gem_core.env.registry import make
from gem_core.errors import ConfigError, MissingDependencyError, UnknownNameError
from gem_core.policies.players import PLAYERS
from gem_core.rollout.env_pool import close_unused
from gem_eval.models.catalog import unplayable

__all__ = ["SUITES", "Suite", "missing_ids", "suite_named", "unplayable_ids"]


@dataclass(frozen=True)
class Suite:
    """A named set of environments and seeds."""

    name: str
    families: Mapping[str, tuple[str, ...]]
    first_seed: int
    seeds: int
    corpora: Mapping[str, str] = field(default_factory=dict)
    """The `corpus_name` of environments over texts that the system installs."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All environment ids, family by family."""
        return tuple(id for ids in self.families.values() for id in ids)

    def only(self, names: Iterable[str]) -> Suite:
        """Return the suite with some of its families and ids."""
        chosen = set()
        for name in names:
            if name not in self.families and name not in self.ids:
                known = (*self.families, *self.ids)
                raise UnknownNameError(f"family or environment of {self.name}", name, known)
            chosen |= set(self.families.get(name, (name,)))
        return self.without(id for id in self.ids if id not in chosen)

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
            "game:Sudoku-v0-easy",
            "game:Sokoban-v0-easy",
        ),
        "reasoning": (
            "rg:chain_sum",
            "rg:letter_counting",
            "rg:family_relationships",
        ),
        "questions": ("math:Sample-v0", "qa:Sample-v0", "logic:Sample-v0", "code:Sample-v0"),
        "grids": (
            "babyai:GoToRedBall-v0",
            "babyai:Unlock-v0",
            "maze:DoubleT-v0",
            "maze:Random-v0",
        ),
        "text worlds": (
            "textcraft:TextCraft-v0-depth2",
            "sciworld:find-plant",
            "sciworld:use-thermometer",
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
        "computer": (
            "web:Shop-v0",
            "miniwob:click-checkboxes",
            "miniwob:login-user",
            "terminal:CountErrors-v0",
            "mcp:Sqlite-v0",
            "mcp:Workplace-v0",
        ),
    },
    # Recipes train on seeds from 0 on.
    first_seed=1_000_000,
    seeds=10,
    corpora={"wiki:WikiGame-v0": "3.11.2 Documentation"},  # Debian 12's python3-doc
)
SUITES = {suite.name: suite for suite in (GEM_EVAL_V1,)}


def suite_named(name: str) -> Suite:
    """Return a suite by name."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, tuple(SUITES))
    return SUITES[name]


def missing_ids(suite: Suite) -> dict[str, str]:
    """Return the ids whose packages, programs or corpus are missing, with the reason."""
    missing = {}
    for id in suite.ids:
        try:
            env = make(id)
            corpus = getattr(env.unwrapped, "corpus_name", "")
            if corpus != suite.corpora.get(id, corpus):
                missing[id] = f"{suite.name} uses {suite.corpora[id]!r}; installed is {corpus!r}"
            close_unused(env)
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
