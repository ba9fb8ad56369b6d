"""Limits: caps on the turns, tokens and seconds of an episode, and its retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gem_core.arguments import whole_number, whole_number_or_none
from gem_core.errors import ConfigError

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one episode. None means no limit."""

    max_turns: int | None = None
    """Turns (the horizon); the environment may end the episode earlier."""
    max_tokens: int | None = None
    """Sampled tokens of the episode. `Sampling.max_tokens` caps one turn."""
    max_context: int | None = None
    """Tokens of a prompt and its generation together: the model's context length."""
    max_response: int | None = None
    """Tokens of a sequence after its first prompt, observations included."""
    make_deadline: float | None = None
    """Seconds to make an environment."""
    step_deadline: float | None = None
    """Seconds per reset or step."""
    generate_deadline: float | None = None
    """Seconds per generation."""
    episode_deadline: float | None = None
    """Seconds for the whole episode, retries included."""
    retries: int = 0
    """How many environment or policy errors an episode survives before it fails."""
    on_cut: Literal["step", "mask", "end"] = "step"
    """How to treat a turn that hit its token cap. The environment always gets the action and gives
    a reward; `mask` also excludes the turn from training, `end` also ends the episode."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tokens", "max_context", "max_response"):
            whole_number_or_none(name, getattr(self, name), 1, "no limit")
        for name in ("make_deadline", "step_deadline", "generate_deadline", "episode_deadline"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0
            ):
                raise ConfigError(
                    f"{name} must be a number above 0 or None for no limit, got {value!r}"
                )
        whole_number("retries", self.retries, 0)
        if self.on_cut not in ("step", "mask", "end"):
            raise ConfigError(f"on_cut must be 'step', 'mask' or 'end', got {self.on_cut!r}")
