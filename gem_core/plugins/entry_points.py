"""Entry points: a callable, or a string `module:name` or `file.py:name`, imported on first use."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError, RegistrationError
from gem_core.plugins.source_files import load_file

__all__ = ["EntryPoint", "check_arguments", "check_entry_point", "load_entry_point"]

EntryPoint = str | Callable[..., Any]


def load_entry_point(entry_point: EntryPoint, what: str, extra: str = "") -> Callable[..., Any]:
    """Import an entry point. If packages are missing, the error names the extra to install."""
    if not isinstance(entry_point, str):
        return entry_point
    module, _, name = entry_point.rpartition(":")
    try:
        imported = load_file(module) if module.endswith(".py") else importlib.import_module(module)
        value = getattr(imported, name)
    except MissingDependencyError:
        raise
    except (ImportError, SystemExit) as error:
        if extra and not (getattr(error, "name", "") or "").startswith(module.partition(".")[0]):
            raise MissingDependencyError(what, extra, str(error)) from error
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    except AttributeError as error:
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} does not exist: {error}"
        ) from error
    if not callable(value):
        raise RegistrationError(
            f"the entry point {entry_point!r} of {what} must be callable, "
            f"got {type(value).__name__}"
        )
    return value  # type: ignore[no-any-return]


def check_arguments(
    build: Callable[..., Any], arguments: Mapping[str, Any], what: str, *, skip_first: bool = False
) -> None:
    """Raise `ConfigError` if `build` does not take these keyword arguments.

    `skip_first` ignores the first parameter, which is the inner environment of a wrapper.
    """
    if not inspect.isclass(build):
        parameters = list(inspect.signature(build).parameters.values())
    elif build.__init__ is object.__init__:  # its signature accepts anything
        parameters = []
    else:
        parameters = list(inspect.signature(build.__init__).parameters.values())[1:]
    if skip_first:
        parameters = parameters[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    accepted = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    unknown = [name for name in arguments if name not in accepted]
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in arguments]
    if unknown or missing:
        problem = "does not take" if unknown else "needs"
        names = ", ".join(map(repr, unknown or missing))
        takes = ", ".join(accepted) or "no arguments"
        raise ConfigError(f"{what} {problem} {names}; it takes: {takes}")


def check_entry_point(entry_point: EntryPoint, what: str) -> None:
    """Raise `RegistrationError` unless `entry_point` is callable or has the form `module:name`."""
    if not (
        callable(entry_point)
        or (isinstance(entry_point, str) and re.fullmatch(r"[\w.]+:\w+", entry_point))
    ):
        raise RegistrationError(
            f"the entry point of {what} must be callable or 'module:name', got {entry_point!r}"
        )
