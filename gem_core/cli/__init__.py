"""Command line: `gem-rl`, one module per command.

A command module has `SUMMARY` (one line for the help), `EXAMPLES` (command lines for its help),
`add_arguments(parser)` and `run(args)`, which returns the exit code and imports heavy packages
itself. A plugin adds a command with the hook `register_commands`. The shell completes arguments
with the metavar ENV or ADAPTER.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.catalog import Catalog
from gem_core.plugins.hookspecs import hookimpl
from gem_core.plugins.manager import on_registration

__all__ = ["commands", "register_command"]

commands: Catalog[str] = Catalog("command", "gem-rl --help")
"""The module of each command, by name."""


def register_command(name: str, module: str, *, replace: bool = False) -> None:
    """Register the command `gem-rl NAME`; plugins call it in `register_commands(register)`."""
    commands.add(name, module, replace=replace)


@hookimpl
def register_commands(register: Callable[..., Any]) -> None:
    """Register the commands of the core."""
    for name in ("envs", "wrappers", "estimators", "plugins", "adapters"):
        register(name, f"gem_core.cli.{name}")


on_registration("register_commands", register_command)
