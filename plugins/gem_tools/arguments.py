"""Checks of arguments that users pass in, in addition to those of `gem_core.arguments`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from gem_core.arguments import short
from gem_core.errors import ConfigError

__all__ = ["did_you_mean", "finite_number", "positive_number", "string_dict", "string_list"]


def finite_number(name: str, value: Any) -> float:
    """Return `value` if it is a finite number; raise `ConfigError` otherwise."""
    number = _float(value)
    if number is None or not math.isfinite(number):
        raise ConfigError(f"{name} must be a finite number, got {short(value)}")
    return number


def positive_number(name: str, value: Any) -> float:
    """Return `value` if it is a number over 0; raise `ConfigError` otherwise."""
    number = _float(value)
    if number is None or not number > 0:
        raise ConfigError(f"{name} must be a positive number, got {short(value)}")
    return number


def string_list(name: str, value: Any) -> list[str]:
    """Return a copy of a list of strings; raise `ConfigError` for anything else.

    The message shows types only: the strings may be secrets.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} must be a list of strings, got {type(value).__name__}")
    for number, item in enumerate(value):
        if not isinstance(item, str):
            raise ConfigError(
                f"{name} must be a list of strings; item {number} is {type(item).__name__}"
            )
    return list(value)


def string_dict(name: str, value: Any) -> dict[str, str]:
    """Return a copy of a mapping of strings to strings; raise `ConfigError` for anything else.

    The message does not show the values: they may be secrets.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must map strings to strings, got {type(value).__name__}")
    for key, item in value.items():
        if not (isinstance(key, str) and isinstance(item, str)):
            raise ConfigError(
                f"{name} must map strings to strings; "
                f"it maps {key!r} to {type(item).__name__}; write both as strings"
            )
    return dict(value)


def did_you_mean(unknown: Iterable[str], known: Sequence[str]) -> str:
    """Return a hint such as "; did you mean 'args' instead of 'arg'", or ""."""
    hints = ""
    for name in unknown:
        prefixes = [k for k in known if len(k) > 2 and name.startswith(k)]
        near = difflib.get_close_matches(name, known, 1) or prefixes
        hints += f"; did you mean {near[0]!r} instead of {name!r}" if near else ""
    return hints


def _float(value: Any) -> float | None:
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest float
        return None
