"""Environment ids of the agent tasks, which need a search index, a browser or a server.

Listing them imports none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["SERVERS", "SITES", "register_agents"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

SITES = {
    "shop": ("Shop", "order, look up and tidy the cart in a web shop"),
    "forum": ("Forum", "reply, vote and start threads in a web forum"),
    "wiki": ("Wiki", "look up and edit the pages of a wiki"),
    "admin": ("Admin", "manage users and settings in a back office"),
    "map": ("Map", "find, save and review places and routes on a map"),
    "repository": ("Repository", "edit files, handle issues and merge requests of projects"),
    "several": ("Several", "carry answers from one or two web sites to another"),
}
SERVERS = {
    "gem": ("Gem", "an environment that `gem-rl serve` serves"),
    "textcraft": ("TextCraft", "AgentGym's TextCraft server"),
    "babyai": ("BabyAI", "AgentGym's BabyAI server"),
    "sciworld": ("SciWorld", "AgentGym's SciWorld server"),
    "searchqa": ("SearchQA", "AgentGym's SearchQA server"),
    "webarena": ("WebArena", "AgentGym's WebArena server"),
    "tool": ("Tool", "AgentGym's Weather, Movie, Academia, Sheet or TODO server"),
    "webshop": ("WebShop", "AgentGym's WebShop server"),
    "sqlgym": ("SqlGym", "AgentGym's server for BIRD"),
    "alfworld": ("AlfWorld", "AgentGym's ALFWorld server"),
    "maze": ("Maze", "AgentGym's maze server, with /maze in its address"),
    "wordle": ("Wordle", "AgentGym's Wordle server, with /wordle in its address"),
}
"""The dialects of `gem_envs.remote.protocols`: the name in the id, and a summary."""


def register_agents(register: Callable[..., Any]) -> None:
    """Register deep search, web navigation, and environments on servers."""
    register(
        "search:DeepSearch-v0",
        "gem_envs.agents.deep_search:DeepSearch",
        kwargs={"max_turns": 10},
        summary="answer a question by searching a corpus",
        turns=10,
        reward="terminal: 1 for a normalised exact match",
        data="shipped sample; any corpus and data set",
        extra="search",
        tags=("tools", "search", "questions"),
    )
    for site, (name, summary) in (
        {None: ("Any", "a task on any of the web sites")} | SITES
    ).items():
        turns = 40 if site == "several" else 20
        register(
            f"web:{name}-v0",
            "gem_envs.web.navigation:WebNavigation",
            kwargs={"site": site, "max_turns": turns},
            wrappers=_REACT,
            summary=f"{summary}, in Chromium",
            turns=turns,
            reward="terminal: 1 for the correct site state and answer",
            data="generated; needs Chromium",
            extra="web",
            tags=("web", "chromium"),
        )
    for dialect, (name, summary) in SERVERS.items():
        register(
            f"agentgym:{name}-v0",
            "gem_envs.remote.agentgym:AgentGym",
            kwargs={"dialect": dialect},
            summary=summary,
            reward="the server's",
            data="a server: url=",
            extra="http",
            deterministic=False,
            offline=False,
            tags=("server",),
        )
    register(
        "openenv:Server-v0",
        "gem_envs.remote.openenv:OpenEnv",
        summary="an environment on an OpenEnv server",
        reward="the server's",
        data="a server: url=",
        extra="openenv",
        deterministic=False,
        offline=False,
        tags=("server",),
    )
