"""Limits: what an episode may cost in turns, tokens and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode may cost. None is no limit."""

    max_turns: int | None = None
    """Turns of an episode (a horizon); the environment may end earlier."""
    max_tokens: int | None = None
    """Sampled tokens of an episode. `Sampling.max_tokens` caps one turn."""
    max_context: int | None = None
    """Tokens of a prompt and its generation together: the model's context."""
    max_response: int | None = None
    """Tokens of a row behind its first prompt, observations included: what trainers allow for."""
    make_deadline: float | None = None
    """Seconds for making an environment."""
    step_deadline: float | None = None
    """Seconds for one reset or step."""
    generate_deadline: float | None = None
    """Seconds for one generation."""
    episode_deadline: float | None = None
    """Seconds for a whole episode, retries included."""
    retries: int = 0
    """How often an episode may go on after an environment or policy error, before it is failed."""
    on_cut: Literal["step", "mask", "end"] = "step"
    """A generation that hit its token cap goes to the environment, whose reward is real; `mask` also leaves the turn out of
    training, `end` also ends the episode there."""

    def __post_init__(self) -> None:
        for name in (
            "max_turns",
            "max_tokens",
            "max_context",
            "max_response",
            "make_deadline",
            "step_deadline",
            "generate_deadline",
            "episode_deadline",
        ):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0
            ):
                raise ConfigError(
                    f"{name} must be a number above 0, or None for no limit; given: {value!r}"
                )
        whole_number("retries", self.retries, 0)
        if self.on_cut not in ("step", "mask", "end"):
            raise ConfigError(f"on_cut must be 'step', 'mask' or 'end'; given: {self.on_cut!r}")
