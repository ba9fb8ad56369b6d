"""Command line: `gem-rl`, one module per command.

A command module has `SUMMARY` (one line for the help), `add_arguments(parser)` and `run(args)`, which returns the exit code.
A new command is a module here and its name in `COMMANDS`. What a command needs beyond the core is imported inside `run`.
"""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = (
    "envs",
    "wrappers",
    "tools",
    "index",
    "play",
    "serve",
    "eval",
    "compare",
    "view",
    "plot",
    "check",
    "plugins",
    "adapters",
    "conformance",
)
"""The module of each command, in the order of the help."""
