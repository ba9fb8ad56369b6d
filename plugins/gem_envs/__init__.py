"""Built-in environments, registered as an ordinary plugin.

Registration stores entry points as strings; `make` imports the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl
from gem_envs.agentgym.ids import register_scenarios
from gem_envs.agents.ids import register_agents
from gem_envs.datasets.ids import register_answer_format, register_datasets
from gem_envs.deliberation.names import register_deliberation
from gem_envs.games.ids import register_games
from gem_envs.mcp_suite.ids import register_mcp_suite
from gem_envs.terminal.ids import register_terminal
from gem_envs.web.ids import register_miniwob
from gem_envs.worlds.ids import register_worlds

__all__ = ["register_commands", "register_environments", "register_wrappers"]


@hookimpl
def register_environments(register: Callable[..., Any]) -> None:
    """Register games, datasets, AgentGym's scenarios, worlds and agent tasks."""
    register_games(register)
    register_datasets(register)
    register_scenarios(register)
    register_agents(register)
    register_terminal(register)
    register_mcp_suite(register)
    register_worlds(register)
    register_miniwob(register)


@hookimpl
def register_wrappers(register: Callable[..., Any]) -> None:
    """Register an answer format and the wrappers in which the model plans or takes notes."""
    register_answer_format(register)
    register_deliberation(register)


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register the commands `corpus`, `serve` and `show`."""
    register("corpus", "gem_envs.cli.corpus")
    register("serve", "gem_envs.cli.serve")
    register("show", "gem_envs.cli.show")
