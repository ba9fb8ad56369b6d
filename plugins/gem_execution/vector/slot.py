"""Slot: one place in a vector, with the environment in it, where its episode stands, and how it is replaced when it breaks."""

from __future__ import annotations

import copy
import logging
import math
import traceback
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from typing import Any

from gem_core.env.base import Env, StepResult
from gem_core.types import Failure
from gem_execution.vector.fast_step import fast_calls

__all__ = ["Autoreset", "Slot", "failed"]

UNKNOWN = math.nan
"""The reward of a step that failed."""

_log = logging.getLogger(__name__)
_NEXT_SEED = 0x9E3779B9


class Autoreset(str, Enum):
    """What happens when an episode ends."""

    NEXT_STEP = "next_step"
    SAME_STEP = "same_step"
    DISABLED = "disabled"


class Slot:
    """One place in a vector: the environment in it, and where its episode stands."""

    def __init__(self, make_env: Callable[[], Env], autoreset: Autoreset) -> None:
        self.make_env = make_env
        self.same_step = autoreset is Autoreset.SAME_STEP
        self.env: Env | None = make_env()
        """None where it broke and has not been replaced yet."""
        self.reset, self.step = fast_calls(self.env)
        """`env.reset` and `env.step`, by the shortest way."""
        self.waits = self.env.is_async
        """Whether its answers have to be waited for."""
        self.first_seed = self.seed = 0
        self.options: Mapping[str, Any] | None = None
        self.episodes = 0
        """Episodes since the caller's reset."""
        self.running = False
        """Whether an episode is on; if not, a step is a reset."""
        self.started = False
        """Whether the caller has ever reset it."""

    def begin(
        self, seed: int, options: Mapping[str, Any] | None
    ) -> Generator[Any, Any, StepResult]:
        """A reset the caller asked for."""
        self.first_seed, self.options, self.episodes, self.started = seed, options, 0, True
        return (yield from self._reset())

    def act(self, action: str) -> Generator[Any, Any, StepResult]:
        """A step, or the reset in its place."""
        if not self.running:
            self.episodes += 1
            observation, reward, terminated, truncated, info = yield from self._reset()
            return observation, reward, terminated, truncated, {**info, "autoreset": True}
        try:
            result: StepResult = yield self.step(action)
        except Exception as error:  # noqa: BLE001 - one environment's failure is data, and no other's business
            return (yield from self.fail("step", error))
        return (yield from self.ended(result)) if result[2] or result[3] else result

    def ended(self, result: StepResult) -> Generator[Any, Any, StepResult]:
        """What a step that ended an episode returns."""
        self.running = False
        if not self.same_step:
            return result
        self.episodes += 1
        return self._renewed_by((yield from self._reset()), result)

    def ended_here(self, result: StepResult) -> StepResult | None:
        """`ended`, by the short way; None where that is not to be had, with nothing changed."""
        if not self.same_step:
            self.running = False
            return result
        if self.waits:
            return None
        self.episodes += 1
        self.seed = (self.seed + _NEXT_SEED) & 0xFFFFFFFF
        try:
            observation, info = self.reset(seed=self.seed, options=self.options)
        except Exception:  # noqa: BLE001 - the long way tries again, and reports it
            self.episodes -= 1
            return None
        info["final_observation"], info["final_info"] = result[0], result[4]
        return observation, result[1], result[2], result[3], info

    def _renewed_by(self, start: StepResult, result: StepResult) -> StepResult:
        observation, reward, terminated, truncated, last = result
        first, unknown, _, _, info = start
        info = {**info, "final_observation": observation, "final_info": last}
        if unknown != 0.0:
            info["reset_failure"] = info.pop("failure")
        if "failure" in last:
            info["failure"] = last["failure"]
        return first, reward, terminated, truncated, info

    def renewed(self) -> Slot:
        """The same place without the environment, for when a call hangs that still holds this object."""
        fresh = copy.copy(self)
        fresh.env, fresh.running = None, False
        return fresh

    def lost(self, where: str, error: BaseException) -> StepResult:
        """What a call returns that left the environment in nobody knows what state."""
        self.env, self.running = None, False
        return failed(where, error)

    def fail(self, where: str, error: Exception) -> Generator[Any, Any, StepResult]:
        """What a step returns that failed outside the slot's own code."""
        return (yield from self.ended((yield from self._failed(where, error))))

    def _reset(self) -> Generator[Any, Any, StepResult]:
        where = "reset"
        try:
            if self.env is None:
                where = "make"
                self.env = self.make_env()
                self.reset, self.step = fast_calls(self.env)
                where = "reset"
            self.seed = (
                (self.first_seed + self.episodes * _NEXT_SEED) & 0xFFFFFFFF
                if self.episodes
                else self.first_seed
            )
            observation, info = yield self.reset(seed=self.seed, options=self.options)
        except Exception as error:  # noqa: BLE001 - one environment's failure is data, and no other's business
            return (yield from self._failed(where, error))
        self.running = True
        return observation, 0.0, False, False, info

    def _failed(self, where: str, error: Exception) -> Generator[Any, Any, StepResult]:
        env, self.env, self.running = self.env, None, False
        if env is not None:
            try:
                yield env.close()
            except Exception:  # noqa: BLE001 - it is broken already
                _log.warning(
                    "closing a broken %s failed", type(env.unwrapped).__name__, exc_info=True
                )
        return failed(where, error)


def failed(where: str, error: BaseException) -> StepResult:
    """What a step returns that failed: the reward is unknown, and the failure is data."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return (
        "",
        UNKNOWN,
        False,
        True,
        {"failure": Failure(type(error).__name__, str(error), where, text)},
    )
