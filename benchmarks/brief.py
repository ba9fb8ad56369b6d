"""Wrapper `brief`: the prompt asks for an answer without an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gem_core import Wrapper, register_wrapper
from gem_core.env.action_format import with_instruction

__all__ = ["INSTRUCTION", "Brief"]

INSTRUCTION = "Do not explain your answer."


class Brief(Wrapper):
    """Add the instruction to the first observation."""

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        result = yield self.env.reset(seed=self._seed, options=options)
        return with_instruction(INSTRUCTION, "observation", result)


register_wrapper("brief", Brief, summary="the prompt asks for an answer without an explanation")
