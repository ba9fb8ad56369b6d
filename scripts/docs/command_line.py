"""Command line page: every command and option of `gem-rl`, from the argument parsers."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable

from fields import cell

__all__ = ["page"]

_HEAD = """# Command line

`gem-rl COMMAND --help` prints the same. `python -m gem_core` is the same program. Plugins may add
commands with the hook [`register_commands`](hooks.md#register_commands).

Exit codes: 0 for success, 1 if a check or a threshold fails, 2 for a wrong argument, 130 after
Ctrl-C.
"""


def page() -> str:
    """Return the page."""
    from gem_core.cli import commands

    parts = [_HEAD]
    for name, path in sorted(commands.all().items()):
        module = importlib.import_module(path)
        parser = argparse.ArgumentParser(prog=f"gem-rl {name}", add_help=False)
        module.add_arguments(parser)
        parts.append(f"\n## gem-rl {name}\n\n{module.SUMMARY[0].upper()}{module.SUMMARY[1:]}.\n")
        parts.append(f"```text\n{_usage(parser)}\n```\n")
        parts += _table(parser)
        examples = "\n".join(getattr(module, "EXAMPLES", ()))
        if examples:
            parts.append(f"\n```sh\n{examples}\n```\n")
    return "\n".join(parts) + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    actions = [each for each in parser._actions if each.help is not argparse.SUPPRESS]
    return sorted(actions, key=lambda each: bool(each.option_strings))  # positional ones first


def _usage(parser: argparse.ArgumentParser) -> str:
    positional = [_metavar(each) for each in _actions(parser) if not each.option_strings]
    required = [
        f"{each.option_strings[-1]} {_metavar(each)}"
        for each in _actions(parser)
        if each.option_strings and each.required
    ]
    options = ["[options]"] if any(each.option_strings for each in _actions(parser)) else []
    return " ".join([parser.prog, *positional, *required, *options])


def _metavar(action: argparse.Action) -> str:
    name = action.metavar or action.dest
    name = str(name if isinstance(name, str) else name[0]).upper()
    if action.choices is not None and action.metavar is None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(
        str(action.nargs), name
    )


def _table(parser: argparse.ArgumentParser) -> list[str]:
    rows = [_row(each, parser) for each in _actions(parser)]
    if any(default for _, default, _ in rows):
        head = ["| Argument | Default | Meaning |", "|---|---|---|"]
        return head + [f"| {name} | {default} | {text} |" for name, default, text in rows]
    head = ["| Argument | Meaning |", "|---|---|"]
    return (head if rows else []) + [f"| {name} | {text} |" for name, _, text in rows]


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> tuple[str, str, str]:
    names = ", ".join(f"`{each}`" for each in action.option_strings)
    if not action.option_strings:
        names = f"`{_metavar(action)}`"
    elif action.nargs != 0:
        names += f" `{_metavar(action)}`"
    default = action.default
    shown = "" if default in (None, False, [], (), argparse.SUPPRESS) else f"`{default}`"
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return names, shown, cell(" ".join(text.split()))
