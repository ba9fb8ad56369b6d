"""Checks and copies of values that users pass in."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from copy import copy
from numbers import Real
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["copy_containers", "fraction", "short", "whole_number", "whole_number_or_none"]


def fraction(name: str, value: Any) -> float:
    """Return `value` if it is a number between 0 and 1; raise `ConfigError` otherwise."""
    if not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise ConfigError(f"{name} must be a number between 0 and 1, got {value!r}")
    return float(value)


def whole_number(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Return `value` if it is an integer in the range; raise `ConfigError` otherwise."""
    if not _is_whole(value, at_least) or (at_most is not None and value > at_most):
        allowed = f">= {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise ConfigError(f"{name} must be an integer {allowed}, got {value!r}")
    return int(value)


def whole_number_or_none(name: str, value: Any, at_least: int, none: str) -> int | None:
    """Like `whole_number`, but accept None. `none` is the meaning of None, such as "no limit"."""
    if value is not None and not _is_whole(value, at_least):
        raise ConfigError(
            f"{name} must be an integer >= {at_least} or None ({none}), got {value!r}"
        )
    return None if value is None else int(value)


def _is_whole(value: Any, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def copy_containers(value: Any, depth: int = 32) -> Any:
    """Copy the containers in a value; deeper ones, as of a cycle, are not copied."""
    if type(value) is dict and depth:
        return {key: copy_containers(item, depth - 1) for key, item in value.items()}
    if type(value) in (list, tuple) and depth:
        return type(value)(copy_containers(item, depth - 1) for item in value)
    copied = (set, bytearray, deque, Counter, OrderedDict, defaultdict)
    return copy(value) if type(value) in copied else value


def short(value: object, limit: int = 80) -> str:
    """Return `repr(value)`, cut to `limit` characters, for error messages."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
