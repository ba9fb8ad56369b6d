"""Events: the hooks that tell plugins what happened."""

from __future__ import annotations

from typing import Any

from gem_core.errors import PluginError
from gem_core.plugins.manager import hook

__all__ = ["send_event"]


def send_event(name: str, **about: Any) -> None:
    """Calls an event hook of all plugins; free where no plugin listens."""
    caller = getattr(hook, name)
    if not caller.get_hookimpls():
        return
    try:
        caller(**about)
    except Exception as error:
        listening = ", ".join(repr(i.plugin_name) for i in caller.get_hookimpls())
        raise PluginError(
            f"the event hook {name} failed in one of the plugins {listening}: {type(error).__name__}: {error}"
        ) from error
