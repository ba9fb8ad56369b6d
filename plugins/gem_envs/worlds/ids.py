"""Environment ids of the worlds. Listing them imports no world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["register_worlds"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

_MAZES: dict[str, dict[str, Any]] = {
    "DoubleT-v0": {"layout": "double_t", "max_turns": 50},
    "Random-v0": {"size": 11, "max_turns": 60},
    "Random-v0-easy": {"size": 7, "max_turns": 30},
    "Random-v0-hard": {"size": 15, "show_position": False, "max_turns": 150},
}
_HOUSEHOLD = {
    None: "a task of any type in a room of a house",
    "PickAndPlace": "find a thing in a room and put it where it belongs",
    "LookInLight": "find a thing in a room and look at it under a lamp",
    "CleanAndPlace": "find a thing, clean it and put it where it belongs",
    "HeatAndPlace": "find a thing, heat it and put it where it belongs",
    "CoolAndPlace": "find a thing, cool it and put it where it belongs",
    "PickTwo": "find two things of a kind and put them into one place",
}
_SQL: dict[str, dict[str, Any]] = {
    "Query-v0": {},
    "Query-v0-simple": {"level": "simple"},
    "Query-v0-moderate": {"level": "moderate"},
    "Query-v0-challenging": {"level": "challenging"},
    "OneShot-v0": {"explore": False, "max_turns": 1},
}
_TOOLS = {
    "Weather": "answer a question about the weather by calling functions",
    "Movie": "answer a question about movies by calling functions",
    "Academia": "answer a question about papers and authors by calling functions",
    "Sheet": "edit a workbook, or answer a question about it, by calling functions",
    "Todo": "edit a to-do list, or answer a question about it, by calling functions",
}
_WIKI_GAMES: dict[str, dict[str, Any]] = {
    "": {"min_distance": 2, "max_distance": 3, "max_turns": 15},
    "-easy": {"min_distance": 2, "max_distance": 2, "max_turns": 30},
    "-hard": {"min_distance": 4, "max_distance": 8, "max_turns": 15},
}
_HOPS: dict[str, dict[str, Any]] = {
    "": {"min_hops": 2, "max_hops": 4, "max_turns": 12},
    **{
        f"-hops{hops}": {"min_hops": hops, "max_hops": hops, "max_turns": 2 * hops + 4}
        for hops in range(2, 7)
    },
}


def register_worlds(register: Callable[..., Any]) -> None:
    """Register every world."""
    _register_mazes(register)
    _register_household(register)
    _register_sql(register)
    _register_tool_tasks(register)
    _register_webshop(register)
    _register_wiki_games(register)
    _register_deep_search(register)


def _register_mazes(register: Callable[..., Any]) -> None:
    for name, kwargs in _MAZES.items():
        register(
            f"maze:{name}",
            "gem_envs.worlds.maze:Maze",
            kwargs=kwargs,
            wrappers=_REACT,
            summary="walk to a goal, seeing only the walls next to you",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for the goal",
            data="generated",
            tags=("grid world",),
        )


def _register_household(register: Callable[..., Any]) -> None:
    for task, summary in _HOUSEHOLD.items():
        register(
            f"household:{task or 'Any'}-v0",
            "gem_envs.worlds.household.household:Household",
            kwargs={"task": task, "max_turns": 50},
            wrappers=_REACT,
            summary=summary,
            turns=50,
            reward="terminal: 1 for the goal",
            data="generated",
            tags=("text adventure",),
        )


def _register_sql(register: Callable[..., Any]) -> None:
    for name, kwargs in _SQL.items():
        kwargs = {"max_turns": 8, **kwargs}
        register(
            f"sql:{name}",
            "gem_envs.worlds.sql.sql:SQL",
            kwargs=kwargs,
            summary="answer a question about a database with a query",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for the rows of the gold query, on three databases",
            data="generated",
            tags=("sql", "questions"),
        )


def _register_tool_tasks(register: Callable[..., Any]) -> None:
    for name, summary in _TOOLS.items():
        register(
            f"tool:{name}-v0",
            f"gem_envs.worlds.tools.{name.lower()}:{name}",
            kwargs={"max_turns": 15},
            wrappers=_REACT,
            summary=summary,
            turns=15,
            reward="terminal: 1 for the right answer and data",
            data="generated",
            tags=("tools",),
        )


def _register_webshop(register: Callable[..., Any]) -> None:
    register(
        "webshop:WebShop-v0",
        "gem_envs.worlds.webshop.webshop:WebShop",
        kwargs={"max_turns": 15},
        wrappers=_REACT,
        summary="search a shop, choose options and buy what a user asks for",
        turns=15,
        reward="terminal: share of attributes, options and price that fit, for the right kind",
        data="generated, 1,200 products",
        extra="search",
        tags=("web", "search"),
    )


def _register_wiki_games(register: Callable[..., Any]) -> None:
    for variant, kwargs in _WIKI_GAMES.items():
        register(
            f"wiki:WikiGame-v0{variant}",
            "gem_envs.worlds.wiki.wiki_game:WikiGame",
            kwargs=kwargs,
            wrappers=(("boxed", {"place": "observation"}),),
            summary="get from one page to another by following links",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for the target page",
            data="Python's documentation: apt-get install python3-doc",
            tags=("game",),
        )


def _register_deep_search(register: Callable[..., Any]) -> None:
    for variant, kwargs in _HOPS.items():
        register(
            f"search:MultiHop-v0{variant}",
            "gem_envs.worlds.deep_search.multi_hop:MultiHopSearch",
            kwargs=kwargs,
            summary="answer a question whose answer needs a chain of texts, by searching",
            turns=kwargs["max_turns"],
            reward="terminal: 1 for a normalised exact match",
            data="generated, 22,000 texts",
            extra="search",
            tags=("tools", "search", "questions"),
        )
