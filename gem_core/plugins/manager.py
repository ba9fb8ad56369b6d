"""Plugin manager: loads packages that add environments, wrappers, tools, adapters and the like.

A plugin is a module or object with hook implementations, found through the entry-point group `gem`.
Two environment variables select plugins by comma-separated entry-point names: `GEM_PLUGINS` loads
only those named and the built-in ones, `GEM_PLUGINS_BLOCK` skips those named.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from gem_core.errors import PluginError
from gem_core.plugins import hookspecs
from gem_core.plugins.hookspecs import hookimpl

__all__ = [
    "PluginInfo",
    "current_plugin",
    "hook",
    "hookimpl",
    "installed_plugins",
    "load_plugins",
    "on_registration",
    "register_plugin",
    "unregister_plugin",
]

GROUP = "gem"
BUILT_IN = (
    "gem_core.wrappers",
    "gem_core.training.advantage",
    "gem_core.cli",
    "gem_tools",
    "gem_envs",
    "gem_eval",
    "gem_check",
    "gem_conformance",
    "gem_new",
)
"""The plugins of this distribution, imported before all others."""

_manager = pluggy.PluginManager("gem")
_manager.add_hookspecs(hookspecs)
_lock = threading.RLock()
_loaded = False
_loader: int | None = None
"""The id of the thread that is loading plugins."""
OWN_CODE = "your own code"
_current: ContextVar[str] = ContextVar("gem_current_plugin", default=OWN_CODE)
hook = _manager.hook
"""Calls the hooks of all plugins, for example `hook.episode_end(episode=...)`."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin: built in, installed or registered by hand."""

    name: str
    origin: str
    """`built in`, `registered by hand`, or the name and version of its distribution."""
    loaded: bool
    hooks: tuple[str, ...] = ()


def current_plugin() -> str:
    """Return the plugin that is registering now, for error messages."""
    return _current.get()


def load_plugins() -> None:
    """Load the built-in plugins and those of installed packages, once."""
    global _loaded, _loader
    # A plugin may look up a name while it registers; that must not load plugins again.
    if _loaded or _loader == threading.get_ident():
        return
    with _lock:
        if _loaded:
            return
        _loader = threading.get_ident()
        try:
            for name in BUILT_IN:
                if not _manager.has_plugin(name) and name not in _names("GEM_PLUGINS_BLOCK"):
                    with _named(name):
                        _manager.register(import_module(name), name=name)
            _check_names()
            for point in _entry_points():
                if _allowed(point.name) and not _manager.has_plugin(point.name):
                    with _named(point.name, _distribution(point)):
                        _manager.register(point.load(), name=point.name)
                        _check_hooks(point.name)
            _loaded = True  # last: other threads wait for the lock until all plugins are loaded
        finally:
            _loader = None


def on_registration(hook_name: str, register: Callable[..., Any]) -> None:
    """Call a registration hook with `register`, for current and for future plugins."""
    getattr(hook, hook_name).call_historic(kwargs={"register": register})


def register_plugin(plugin: object, name: str | None = None) -> None:
    """Register a plugin: a module, or an object with methods marked `@hookimpl`."""
    load_plugins()
    name = name or getattr(plugin, "__name__", None) or type(plugin).__name__
    with _lock, _named(name):
        _manager.register(plugin, name=name)
        _check_hooks(name)


def unregister_plugin(name: str) -> None:
    """Remove a plugin's event hooks; its environments, wrappers etc. stay registered."""
    _manager.unregister(name=name)


def installed_plugins() -> list[PluginInfo]:
    """Return all plugins, loaded or blocked."""
    load_plugins()
    origins = {p.name: _distribution(p) for p in _entry_points()}
    infos = []
    for name, plugin in _manager.list_name_plugin():
        if plugin is None:
            continue
        hooks = tuple(sorted(c.name for c in _manager.get_hookcallers(plugin) or ()))
        origin = "built in" if name in BUILT_IN else origins.get(name, "registered by hand")
        infos.append(PluginInfo(name, origin, True, hooks))
    infos += [
        PluginInfo(name, origin, False)
        for name, origin in origins.items()
        if not _manager.has_plugin(name)
    ]
    return sorted(infos, key=lambda i: i.name)


def _entry_points() -> list[EntryPoint]:
    # Python before 3.10.6 finds a distribution twice if its sources have an egg-info folder
    points = {(p.name, p.value, p.dist and p.dist.name): p for p in entry_points(group=GROUP)}
    return sorted(points.values(), key=lambda p: p.name)


def _distribution(point: EntryPoint) -> str:
    dist = point.dist
    return f"{dist.name} {dist.version}" if dist is not None else "an unknown distribution"


def _names(variable: str) -> set[str]:
    return {n.strip() for n in os.environ.get(variable, "").split(",") if n.strip()}


def _allowed(name: str) -> bool:
    if "GEM_PLUGINS" in os.environ and name not in _names("GEM_PLUGINS"):
        return False
    return name not in _names("GEM_PLUGINS_BLOCK")


def _check_names() -> None:
    """Raise for two plugins of one name; warn of variables that name no installed plugin."""
    origins = dict.fromkeys(BUILT_IN, "this distribution")
    for point in _entry_points():
        if point.name in origins and _allowed(point.name):
            raise PluginError(
                f"two plugins are named {point.name!r}: one from {origins[point.name]}, one from "
                f"{_distribution(point)}. Rename the entry point of one, uninstall one, or skip "
                f"both with GEM_PLUGINS_BLOCK={point.name}"
            )
        origins[point.name] = _distribution(point)
    for variable in ("GEM_PLUGINS", "GEM_PLUGINS_BLOCK"):
        if unknown := ", ".join(sorted(_names(variable) - set(origins))):
            warnings.warn(f"{variable} names no installed plugin: {unknown}", stacklevel=2)


def _check_hooks(name: str) -> None:
    """Raise `PluginError` for a misspelt hook, which pluggy ignores unless asked."""
    try:
        _manager.check_pending()
    except pluggy.PluginValidationError as error:
        _manager.unregister(name=name)
        kinds = ("register_", "episode_", "turn_", "batch_", "update_")
        known = ", ".join(sorted(n for n in vars(hookspecs) if n.startswith(kinds)))
        raise PluginError(
            f"the plugin {name!r} implements an unknown hook: {error}. The hooks are: {known}"
        ) from error


@contextmanager
def _named(name: str, origin: str = "") -> Iterator[None]:
    token = _current.set(f"the plugin {name!r}")
    registered_before = _manager.has_plugin(name)
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # SystemExit would end the command with success
        # pluggy keeps a plugin whose hook raised, which would then count as loaded.
        if not registered_before and _manager.has_plugin(name):
            _manager.unregister(name=name)
        source = f" (from {origin})" if origin else ""
        raise PluginError(
            f"the plugin {name!r}{source} cannot be loaded: {type(error).__name__}: {error}. "
            f"Fix or uninstall it, or skip it with GEM_PLUGINS_BLOCK={name}"
        ) from error
    finally:
        _current.reset(token)
