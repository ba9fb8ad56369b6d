"""Hooks page: every hook that a plugin may implement, from the specifications."""

from __future__ import annotations

from typing import Any

from fields import load, table_of_fields

__all__ = ["page"]

_HEAD = """# Hooks

A plugin is a package with an entry point in the group `gem` and functions marked with
`@gem_core.hookimpl`. [Write a plugin](../write_a_plugin.md) shows a complete one. A hook
implementation may leave out arguments that it does not use.

`gem-rl plugins` lists the plugins of the environment. `GEM_PLUGINS_BLOCK=name,name` disables
plugins; `GEM_PLUGINS=name,name` disables all others but the built-in ones.
"""
_REGISTRATION = """
## Registration hooks

gem calls each of them once, when it first needs the registered names. `register` takes the
arguments listed here; an entry point is a callable, or a string `"module:name"` that is imported
on first use.
"""
_EVENTS = """
## Event hooks

The rollout engine and the metrics file call these, in the process that plays the episodes. An
error in an event hook raises `PluginError`.
"""


_REGISTER = {
    "register_environments": "gem_core.env.registry:register",
    "register_wrappers": "gem_core.env.wrapper_stack:register_wrapper",
    "register_tools": "gem_tools:register_tool",
    "register_adapters": "gem_core.adapter_kit.declaration:register_adapter",
    "register_estimators": "gem_core.training.advantage:register_estimator",
    "register_commands": "gem_core.cli:register_command",
}
"""The function that gem passes to each registration hook."""
_GIVEN = ("id", "entry_point", "kwargs", "wrappers")


def page() -> str:
    """Return the page."""
    hooks = list(load("gem_core.plugins.hookspecs").functions.values())
    registration = [each for each in hooks if each.name.startswith("register_")]
    events = [each for each in hooks if each not in registration]
    parts = [_HEAD, _REGISTRATION, *map(_entry, registration), _EVENTS, *map(_entry, events)]
    return "\n".join(parts)


def _entry(hook: Any) -> str:
    arguments = ", ".join(f"{each.name}: {each.annotation}" for each in hook.parameters)
    text = f"\n### {hook.name}\n\n{hook.docstring.value}\n"
    text += f"\n```python\n@hookimpl\ndef {hook.name}({arguments}) -> None: ...\n```\n"
    if hook.name in _REGISTER:
        function = load(_REGISTER[hook.name])
        text += f"\n`register` is:\n\n```python\n{_signature(function)}\n```\n"
    if hook.name == "register_environments":
        text += "\n`facts` are the descriptive fields of `EnvSpec`:\n\n"
        text += table_of_fields("gem_core.env.registry:EnvSpec", without=_GIVEN) + "\n"
    return text


def _signature(function: Any) -> str:
    """Return the signature of a function under the name `register`, on one line if it is short."""
    line = "register" + function.signature().removeprefix(function.name)
    if len(line) <= 88:
        return line
    arguments, _, returned = line.removeprefix("register(").rpartition(") -> ")
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    lines = "".join(f"    {part.strip()},\n" for part in parts)
    return f"register(\n{lines}) -> {returned}"
