"""Events: hooks that notify plugins of episodes, turns, batches and updates."""

from __future__ import annotations

from typing import Any

from gem_core.errors import PluginError
from gem_core.plugins.manager import hook

__all__ = ["send_event"]


def send_event(name: str, **arguments: Any) -> None:
    """Call an event hook of all plugins; costs almost nothing if no plugin implements it."""
    caller = getattr(hook, name)
    if not caller.get_hookimpls():
        return
    try:
        caller(**arguments)
    except (Exception, SystemExit) as error:
        plugins = ", ".join(repr(i.plugin_name) for i in caller.get_hookimpls())
        raise PluginError(
            f"the event hook {name} failed in one of the plugins {plugins}: "
            f"{type(error).__name__}: {error}"
        ) from error
