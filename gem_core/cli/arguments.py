"""Arguments: what stands on a command line as JSON."""

from __future__ import annotations

import json
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["env_arguments", "json_object"]


def env_arguments(text: str) -> dict[str, Any]:
    """What `--args` gives to the environment."""
    given = json_object("--args", text)
    taken = {"execution", "id", "wrappers"} & set(given)
    if taken:
        raise ConfigError(
            f"--args is for arguments of the environment itself, which {', '.join(sorted(taken))} is not"
        )
    return given


def json_object(flag: str, text: str) -> dict[str, Any]:
    """The object behind a flag; an empty one where the flag was left out."""
    if not text:
        return {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{flag} {text!r} is no JSON ({error}); write it as '{{\"name\": value}}'"
        ) from None
    if not isinstance(given, dict):
        raise ConfigError(
            f"{flag} must be a JSON object such as '{{\"name\": value}}'; given: {text}"
        )
    return given
