"""Environment ids: `namespace:Name[-vN][-variant]`, `file.py:Class`, and mixtures of them."""

from __future__ import annotations

import re

from gem_core.errors import ConfigError

__all__ = ["ENV_ID", "is_file_id", "is_mixture", "parse_mixture"]

ENV_ID = re.compile(r"[a-z][a-z0-9_]*:[A-Za-z0-9][A-Za-z0-9_.]*(-v\d+)?(-[A-Za-z0-9_.-]+)?")
_FILE_ID = re.compile(r"([A-Za-z]:)?[^*:]+\.py(:[A-Za-z_]\w*)?")
_TERM = re.compile(
    r"\s*(?:(?P<weight>[0-9.]+)\s*\*)?\s*(?P<id>[a-z][a-z0-9_]*:[^\s*]+|[^\s*]+\.py:\w+)\s*"
)
_WEIGHTED = re.compile(r"[^:*]+\*[^:*]+:")


def is_file_id(id: str) -> bool:
    """Return whether an id names a class in a file: `lock.py:Lock`."""
    return isinstance(id, str) and _FILE_ID.fullmatch(id.strip()) is not None


def is_mixture(id: str) -> bool:
    """Return whether an id is a weighted sum of ids."""
    if not isinstance(id, str) or is_file_id(id):
        return False
    return "+" in id or _WEIGHTED.match(id) is not None


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """Return the (id, weight) pairs of `2*a:A + b:B`; the default weight is 1."""
    parts: list[tuple[str, float]] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        try:
            weight = float(match["weight"] or 1) if match else 0.0
        except ValueError:
            weight = 0.0
        if match is None or weight <= 0:
            raise ConfigError(
                f"{term.strip()!r} in the mixture {text!r} is not weight*id; write, for example, "
                "'2*game:GuessTheNumber-v0-easy + 1*game:Wordle-v0-easy', with weights above 0"
            )
        parts.append((match["id"], weight))
    return parts
