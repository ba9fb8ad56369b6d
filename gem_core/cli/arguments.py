"""Command-line arguments in JSON."""

from __future__ import annotations

import json
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["env_arguments", "json_object"]


def env_arguments(text: str) -> dict[str, Any]:
    """Return the keyword arguments of the environment from `--args`."""
    arguments = json_object("--args", text)
    reserved = {"execution", "id", "wrappers"} & set(arguments)
    if reserved:
        raise ConfigError(
            f"--args takes arguments of the environment itself, got {', '.join(sorted(reserved))}"
        )
    return arguments


def json_object(flag: str, text: str) -> dict[str, Any]:
    """Parse the JSON object of a flag; an empty text gives an empty object."""
    if not text:
        return {}
    expected = f"{flag} must be a JSON object such as '{{\"name\": value}}'"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{expected}, but {text!r} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{expected}, got {text}")
    return value
