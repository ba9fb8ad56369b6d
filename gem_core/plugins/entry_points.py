"""Entry points: a callable, or the string `module:name` that imports one when it is needed."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError, RegistrationError

__all__ = ["EntryPoint", "check_arguments", "check_entry_point", "load_entry_point"]

EntryPoint = str | Callable[..., Any]


def load_entry_point(entry_point: EntryPoint, what: str, extra: str = "") -> Callable[..., Any]:
    """Imports what an entry point names; an import that fails names the extra that would mend it."""
    if not isinstance(entry_point, str):
        return entry_point
    module, _, name = entry_point.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except MissingDependencyError:
        raise
    except ImportError as error:
        if extra and not (error.name or "").startswith(module.partition(".")[0]):
            raise MissingDependencyError(what, extra, str(error)) from error
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} cannot be imported: {error}"
        ) from error
    except AttributeError as error:
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} does not exist: {error}"
        ) from error
    if not callable(found):
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} is {type(found).__name__}, not something to call"
        )
    return found  # type: ignore[no-any-return]


def check_arguments(
    build: Callable[..., Any], arguments: Mapping[str, Any], what: str, *, skip_first: bool = False
) -> None:
    """Raise `ConfigError` if `build` does not take these keyword arguments; a wrapper's first one is the inner environment."""
    if not inspect.isclass(build):
        parameters = list(inspect.signature(build).parameters.values())
    elif build.__init__ is object.__init__:  # its signature would take anything
        parameters = []
    else:
        parameters = list(inspect.signature(build.__init__).parameters.values())[1:]
    if skip_first:
        parameters = parameters[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    takes = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    unknown = [name for name in arguments if name not in takes]
    missing = [n for n, p in takes.items() if p.default is p.empty and n not in arguments]
    if unknown or missing:
        said = (
            f"does not take {', '.join(map(repr, unknown))}"
            if unknown
            else f"needs {', '.join(map(repr, missing))}"
        )
        raise ConfigError(f"{what} {said}; it takes: {', '.join(takes) or 'no arguments'}")


def check_entry_point(entry_point: EntryPoint, what: str) -> None:
    """Raise `RegistrationError` unless `entry_point` is callable or reads `module:name`."""
    if not (
        callable(entry_point)
        or (isinstance(entry_point, str) and re.fullmatch(r"[\w.]+:\w+", entry_point))
    ):
        raise RegistrationError(
            f"the entry point of {what} must be callable or 'module:name', not {entry_point!r}"
        )
