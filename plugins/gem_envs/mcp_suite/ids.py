"""Environment ids of the MCP suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_envs.mcp_suite.task import LEVELS

__all__ = ["SUITES", "register_mcp_suite"]

SUITES = {
    "Sqlite": "a SQLite database",
    "Postgres": "a PostgreSQL database",
    "Git": "a git repository and its files",
    "Files": "a folder of files",
    "Workplace": "mail, a calendar, files and a CRM",
}
_NEEDS = {"Postgres": "bubblewrap and PostgreSQL", "Git": "bubblewrap and git"}


def register_mcp_suite(register: Callable[..., Any]) -> None:
    """Register an id per suite, and one per suite and level."""
    for suite, data in SUITES.items():
        for level in (None, *LEVELS):
            which = "tasks" if level is None else f"{level} tasks"
            register(
                f"mcp:{suite}-v0" if level is None else f"mcp:{suite}-v0-{level}",
                "gem_envs.mcp_suite.env:McpTask",
                kwargs={"suite": suite, "level": level, "max_turns": 20},
                summary=f"{which} on {data}, through MCP servers",
                turns=20,
                reward="terminal: 1 for the requested final state",
                data=f"generated; needs {_NEEDS.get(suite, 'bubblewrap')}",
                extra="mcp-suite",
                deterministic=False,
                tags=("tools", "mcp", "bubblewrap"),
            )
