"""Arguments: checks of values that users pass in."""

from __future__ import annotations

from typing import Any

from gem_core.errors import ConfigError

__all__ = ["short", "whole_number"]


def whole_number(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """A parameter that must be a whole number in a range, or an error that says so."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least or (at_most is not None and value > at_most):
        allowed = f"from {at_least} to {at_most}" if at_most is not None else f"from {at_least} up"
        raise ConfigError(f"{name} must be a whole number {allowed}; given: {value!r}")
    return value


def short(value: object, limit: int = 80) -> str:
    """`repr(value)`, cut to `limit` characters, for error messages."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
