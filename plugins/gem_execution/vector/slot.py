"""Slot of a vector: an environment, the state of its episode, and its replacement on failure."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from typing import Any, cast

from gem_core.env.base import Env, StepResult
from gem_core.env.maybe_async import Waiter, drive
from gem_core.types import Failure
from gem_execution.vector.fast_step import fast_calls

__all__ = ["NOT_CONTAINED", "Autoreset", "Slot", "failed"]

NOT_CONTAINED = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""The exceptions that end a call: Ctrl-C and cancellation. All others are failures."""

UNKNOWN = math.nan
"""The reward of a step that failed."""

_log = logging.getLogger(__name__)
_NEXT_SEED = 0x9E3779B9


class Autoreset(str, Enum):
    """When a vector resets an environment whose episode ended."""

    NEXT_STEP = "next_step"
    SAME_STEP = "same_step"
    DISABLED = "disabled"


class Slot:
    """One environment of a vector and the state of its episode."""

    def __init__(self, make_env: Callable[[], Env], autoreset: Autoreset) -> None:
        self.make_env = make_env
        self.same_step = autoreset is Autoreset.SAME_STEP
        self.env: Env | None = make_env()
        """None after a failure, until the next reset makes a new environment."""
        self.reset, self.step = fast_calls(self.env)
        """`env.reset` and `env.step`, or their fast versions."""
        self.waits = self.env.is_async
        """Whether its results are awaitables."""
        self.first_seed = self.seed = 0
        self.options: Mapping[str, Any] | None = None
        self.episodes = 0
        """Episodes since the caller's reset."""
        self.running = False
        """Whether an episode is running; if not, a step resets."""
        self.started = False
        """Whether the caller has reset it before."""
        self.abandoned = False
        """Whether a call hangs in it, or the vector is closed: it makes no more environments."""

    def begin(
        self, seed: int, options: Mapping[str, Any] | None
    ) -> Generator[Any, Any, StepResult]:
        """Reset with a seed from the caller."""
        self.first_seed, self.options, self.episodes, self.started = seed, options, 0, True
        return (yield from self._reset())

    def act(self, action: str) -> Generator[Any, Any, StepResult]:
        """Step, or reset if no episode is running."""
        if not self.running:
            self.episodes += 1
            observation, reward, terminated, truncated, info = yield from self._reset()
            return observation, reward, terminated, truncated, {**info, "autoreset": True}
        try:
            result: StepResult = yield self.step(action)
        except NOT_CONTAINED:
            raise
        except BaseException as error:  # noqa: BLE001 - a failure is data
            return (yield from self.fail("step", error))
        return (yield from self.ended(result)) if result[2] or result[3] else result

    def ended(self, result: StepResult) -> Generator[Any, Any, StepResult]:
        """Return the result of the step that ended an episode, after a `same_step` reset."""
        self.running = False
        if not self.same_step or self.abandoned:
            return result
        self.episodes += 1
        result = (*result[:4], dict(result[4]))  # the reset may change the environment's own dict
        return self._with_reset((yield from self._reset()), result)

    def ended_here(self, result: StepResult) -> StepResult | None:
        """Synchronous fast path of `ended`; None, without a state change, if it does not apply."""
        if not self.same_step:
            self.running = False
            return result
        if self.waits:
            return None
        self.episodes += 1
        self.seed = (self.seed + _NEXT_SEED) & 0xFFFFFFFF
        final_info = dict(result[4])  # the reset may change the environment's own dict
        try:
            observation, info = self.reset(seed=self.seed, options=self.options)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - the slow path tries again and reports it
            self.episodes -= 1
            return None
        info = {**info, "final_observation": result[0], "final_info": final_info}
        return observation, result[1], result[2], result[3], info

    def _with_reset(self, reset: StepResult, result: StepResult) -> StepResult:
        final_observation, reward, terminated, truncated, final_info = result
        observation, reset_reward, _, _, info = reset
        info = {**info, "final_observation": final_observation, "final_info": final_info}
        if reset_reward != 0.0:  # NaN: the reset failed
            info["reset_failure"] = info.pop("failure")
        if "failure" in final_info:
            info["failure"] = final_info["failure"]
        return observation, reward, terminated, truncated, info

    def run(self, steps: Generator[Any, Any, StepResult], waiter: Waiter) -> StepResult:
        """Run one of the generators above on the caller's thread; only Ctrl-C is raised."""
        try:
            return cast(StepResult, waiter.result(drive(steps)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the generators do not contain it
            return self.lost("step", error)

    def renewed(self) -> Slot:
        """Return a copy without the environment; a call that hangs still uses this slot."""
        slot = copy.copy(self)
        slot.env, slot.running = None, False
        self.abandoned = True
        return slot

    def lost(self, where: str, error: BaseException) -> StepResult:
        """Return the failure of a call that left the environment in an unknown state."""
        self.env, self.running = None, False
        return failed(where, error)

    def fail(self, where: str, error: BaseException) -> Generator[Any, Any, StepResult]:
        """Return the failure of a step whose error was raised outside the slot."""
        return (yield from self.ended((yield from self._failed(where, error))))

    def _reset(self) -> Generator[Any, Any, StepResult]:
        where = "reset"
        try:
            if self.env is None:
                where = "make"
                self.env = self.make_env()
                if self.abandoned:
                    raise RuntimeError("the vector no longer uses this environment")  # closes it
                self.reset, self.step = fast_calls(self.env)
                where = "reset"
            self.seed = (
                (self.first_seed + self.episodes * _NEXT_SEED) & 0xFFFFFFFF
                if self.episodes
                else self.first_seed
            )
            observation, info = yield self.reset(seed=self.seed, options=self.options)
        except NOT_CONTAINED:
            raise
        except BaseException as error:  # noqa: BLE001 - a failure is data
            return (yield from self._failed(where, error))
        self.running = True
        return observation, 0.0, False, False, info

    def _failed(self, where: str, error: BaseException) -> Generator[Any, Any, StepResult]:
        env, self.env, self.running = self.env, None, False
        if env is not None:
            try:
                yield env.close()
            except NOT_CONTAINED:
                raise
            except BaseException:  # noqa: BLE001 - the environment has failed already
                name = type(env.unwrapped).__name__
                _log.warning("closing a failed %s failed", name, exc_info=True)
        return failed(where, error)


def failed(where: str, error: BaseException) -> StepResult:
    """Return the result of a failed step: an unknown reward and the failure as data."""
    return "", UNKNOWN, False, True, {"failure": Failure.from_error(error, where)}
