"""Transcript: an episode as text, short enough to read at once."""

from __future__ import annotations

import textwrap

from gem_core.types import Episode

__all__ = ["transcript_of"]

_WIDTH = 96
_LINES = 24
"""Lines that are shown of one text."""
_FIRST, _LAST = 4, 1
"""Turns that are shown of a long episode."""


def transcript_of(episode: Episode) -> str:
    """Return the messages, actions and rewards; long texts and episodes are cut."""
    turns = list(enumerate(episode.turns))
    long = len(turns) > _FIRST + _LAST + 1
    parts = []
    for number, turn in turns:
        if long and _FIRST <= number < len(turns) - _LAST:
            if number == _FIRST:
                parts.append(f"... {len(turns) - _FIRST - _LAST} turns\n")
            continue
        parts += [_labelled(message.role, message.content) for message in turn.messages]
        parts.append(_labelled("model", turn.action))
        parts.append(f"reward: {turn.reward:.3g}\n")
    parts.append(_labelled("user", episode.final_observation))
    total = episode.total_reward
    played = f"{len(turns)} turn{'s' * (len(turns) != 1)}"
    parts.append(f"{episode.stop.value} after {played}, return {total:.3g}")
    return "\n".join(parts)


def _labelled(role: str, text: str) -> str:
    lines = [
        short
        for line in text.strip("\n").splitlines()
        for short in (textwrap.wrap(line, _WIDTH, replace_whitespace=False) or [""])
    ]
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], f"... {len(lines) - _LINES + 1} more lines"]
    return f"{role}:\n" + "\n".join(f"    {line}".rstrip() for line in lines)
