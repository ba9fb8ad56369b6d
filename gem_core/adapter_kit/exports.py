"""Exports of an adapter package: its registration, and its public names on first access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gem_core.adapter_kit.declaration import Adapter
from gem_core.errors import MissingDependencyError
from gem_core.plugins.hookspecs import hookimpl

__all__ = ["lazy_exports", "registration"]


def registration(adapter: Adapter) -> Callable[..., None]:
    """Return a module's implementation of the hook `register_adapters`."""

    @hookimpl
    def register_adapters(register: Callable[..., Any]) -> None:
        register(adapter)

    return register_adapters


def lazy_exports(adapter: Adapter, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that imports each name from the module it is mapped to.

    Importing the adapter itself needs no framework; accessing a name of a missing framework raises
    `MissingDependencyError`.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {adapter.package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{adapter.package}.{modules[name]}"), name)
        except ImportError as error:
            raise MissingDependencyError(
                f"{adapter.package}.{name}", adapter.extra, str(error)
            ) from error

    return get
