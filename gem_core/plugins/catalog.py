"""Catalog: the registered values of one kind (environments, wrappers, adapters...), by name."""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

from gem_core.errors import RegistrationError, UnknownNameError
from gem_core.plugins.manager import OWN_CODE, current_plugin, load_plugins

__all__ = ["Catalog"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Catalog(Generic[T]):
    """The registered values of one kind, by name. The first lookup loads the plugins."""

    def __init__(self, kind: str, command: str = "") -> None:
        self.kind = kind
        self._hint = f"`{command}` lists them all." if command else ""
        self._known: dict[str, T] = {}
        self._owner: dict[str, str] = {}

    def add(self, name: str, value: T, *, replace: bool = False) -> None:
        """Register a value. The error for a taken name names both owners."""
        owner = current_plugin()
        if name in self._known and not replace:
            raise RegistrationError(
                f"the {self.kind} {name!r} is already registered by {self._owner[name]}; "
                f"{owner} cannot register it again. Choose another name, or pass replace=True."
            )
        if name in self._known and owner not in (self._owner[name], OWN_CODE):
            _log.warning("%s replaces the %s %r of %s", owner, self.kind, name, self._owner[name])
        self._known[name], self._owner[name] = value, owner

    def get(self, name: str) -> T:
        """Return the value of a name; the error for an unknown name suggests similar ones."""
        load_plugins()
        try:
            return self._known[name]
        except (KeyError, TypeError):
            raise UnknownNameError(self.kind, str(name), tuple(self._known), self._hint) from None

    def all(self) -> dict[str, T]:
        """Return all values, sorted by name."""
        load_plugins()
        return dict(sorted(self._known.items()))

    def remove(self, name: str) -> None:
        """Remove a name, if registered (for tests and interactive work)."""
        self._known.pop(name, None)
        self._owner.pop(name, None)
