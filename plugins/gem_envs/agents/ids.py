"""Environment ids of the agent tasks, which need a search index, a shell, a browser or a server.

Listing them imports none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["SERVERS", "SITES", "TERMINAL_KINDS", "register_agents"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

TERMINAL_KINDS = {
    "CountErrors": "count the lines of log files",
    "SumColumn": "sum over a table",
    "Rename": "rename files by a pattern",
    "CleanUp": "delete some files and no others",
    "UniqueAddresses": "sort and remove duplicates",
    "EditConfig": "change one setting",
    "FixScript": "fix a program",
    "SortPhotos": "move files into folders",
    "Permissions": "set modes of files",
    "NewestRelease": "find the highest version and link to it",
    "FindInArchive": "find a file in an archive",
    "JsonReport": "turn JSON into a table",
}
SITES = {
    "shop": ("Shop", "order, look up and tidy the cart in a web shop"),
    "forum": ("Forum", "reply, vote and start threads in a web forum"),
    "wiki": ("Wiki", "look up and edit the pages of a wiki"),
    "admin": ("Admin", "manage users and settings in a back office"),
}
SERVERS = {
    "gem": ("Gem", "an environment that `gem-rl serve` serves"),
    "textcraft": ("TextCraft", "AgentGym's TextCraft server"),
    "babyai": ("BabyAI", "AgentGym's BabyAI server"),
    "sciworld": ("SciWorld", "AgentGym's SciWorld server"),
    "searchqa": ("SearchQA", "AgentGym's SearchQA server"),
    "webarena": ("WebArena", "AgentGym's WebArena server"),
}
"""The dialects of `gem_envs.remote.protocols`: the name in the id, and a summary."""


def register_agents(register: Callable[..., Any]) -> None:
    """Register deep search, the terminal, web navigation, and environments on servers."""
    register(
        "search:DeepSearch-v0",
        "gem_envs.agents.deep_search:DeepSearch",
        kwargs={"max_turns": 10},
        summary="answer a question by searching a corpus",
        turns=10,
        reward="terminal: 1 for a normalised exact match",
        data="shipped sample; any corpus and data set",
        extra="search",
    )
    for kind, summary in ({None: "a task in a shell, of any kind"} | TERMINAL_KINDS).items():
        register(
            f"terminal:{kind or 'Any'}-v0",
            "gem_envs.agents.terminal:Terminal",
            kwargs={"kind": kind, "max_turns": 15},
            summary=f"{summary}, in a sandboxed shell" if kind else summary,
            turns=15,
            reward="terminal: 1 if every test of the files passes",
            data="generated; needs bubblewrap",
            deterministic=False,
        )
    for site, (name, summary) in (
        {None: ("Any", "a task on any of the web sites")} | SITES
    ).items():
        register(
            f"web:{name}-v0",
            "gem_envs.web.navigation:WebNavigation",
            kwargs={"site": site, "max_turns": 20},
            wrappers=_REACT,
            summary=f"{summary}, in Chromium",
            turns=20,
            reward="terminal: 1 for the correct site state and answer",
            data="generated; needs Chromium",
            extra="web",
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
    )
