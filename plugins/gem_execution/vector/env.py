"""Vector environments with Gymnasium semantics and isolated failures.

    with make_vec("game:GuessTheNumber-v0-hard", 128) as vec:
        observations, infos = vec.reset(seed=0)  # environment i gets seed 0 + i
        observations, rewards, terminations, truncations, infos = vec.step(actions)

`step` takes one action per environment, or a mapping from index to action for some of them. The
results have the same order.

| autoreset   | when an episode ends                                                              |
|-------------|-----------------------------------------------------------------------------------|
| `next_step` | the next step ignores its action and resets: reward 0, `info["autoreset"]`        |
| `same_step` | the step resets: `info["final_observation"]`, `info["final_info"]` are the old    |
| `disabled`  | the caller calls `reset(indices=[...])`; a step before that raises                |

A failure of one environment (an error, a missed deadline, an invalid result, a dead process) does
not affect the others. Its step is truncated, with a `Failure` in `info["failure"]` and the reward
NaN, because the true reward is unknown. The next reset makes a new environment; after a missed
deadline it happens with the next step, even in `same_step`. After k autoresets the seed of an
environment is `(first seed + k * 0x9E3779B9) mod 2**32`.

`VectorEnv` is `mode="sync"`: it steps the environments in turn on the caller's thread.
`AsyncVectorEnv` is `mode="async"`, and `mode="ray"` does the same on a cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from operator import countOf
from typing import Any, NamedTuple

from gem_core.env.base import Env, StepResult
from gem_core.env.maybe_async import Waiter, drive
from gem_core.errors import ActionTypeError, ConfigError, ContractError, ResetNeededError
from gem_execution.vector.runner import close_here
from gem_execution.vector.slot import Autoreset, Slot

__all__ = ["Autoreset", "Batch", "VectorEnv"]


class Batch(NamedTuple):
    """Result of `step`, with one entry per environment that was stepped."""

    observations: list[str]
    rewards: list[float]
    terminations: list[bool]
    truncations: list[bool]
    infos: list[dict[str, Any]]


class VectorEnv:
    """Step environments in turn on the caller's thread."""

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        *,
        autoreset: Autoreset | str = Autoreset.NEXT_STEP,
        env_ids: Sequence[str] | None = None,
    ) -> None:
        """`makers`: one function per environment; it is called again to replace a failed one."""
        if not makers:
            raise ConfigError("a vector needs at least one environment; got none")
        try:
            self.autoreset = Autoreset(autoreset)
        except ValueError:
            raise ConfigError(
                f"autoreset must be one of {[a.value for a in Autoreset]}; got {autoreset!r}"
            ) from None
        self._closed = False
        self._waiter = Waiter()
        self._slots: list[Slot] = []
        try:
            for make_env in makers:
                self._slots.append(Slot(make_env, self.autoreset))
        except BaseException:
            VectorEnv.close(self)
            raise
        self.env_ids = (
            list(env_ids)
            if env_ids is not None
            else [type(e.unwrapped).__name__ for e in self.envs if e is not None]
        )
        self.num_envs = len(self._slots)
        self._may_need_reset = True
        """Whether a step must check that every environment has a running episode."""

    @property
    def envs(self) -> list[Env | None]:
        """The environments; None for a failed one that is not replaced yet."""
        return [slot.env for slot in self._slots]

    @property
    def seeds(self) -> list[int]:
        """The seed of each environment's running episode."""
        return [slot.seed for slot in self._slots]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        indices: Sequence[int] | None = None,
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Start an episode in every environment, or in those at `indices`.

        Returns (observations, infos). `seed`: an integer s gives s + i to environment i, a sequence
        has one seed per environment that is reset, None draws random seeds.
        """
        resets = self._resets(seed, options, indices)
        outcomes = self._advance({i: slot.begin(s, o) for i, slot, s, o in resets}, "reset")
        return [o[0] for o in outcomes], [o[4] for o in outcomes]

    def step(self, actions: Sequence[str] | Mapping[int, str]) -> Batch:
        """Step every environment, or those in a mapping; the results have the same order."""
        indices, texts = self._checked_actions(actions)
        slots = self._slots if type(indices) is range else [self._slots[i] for i in indices]
        flat: list[Any] = []  # all results in one list, so every fifth value is a column
        for slot, action in zip(slots, texts, strict=True):
            try:
                if slot.running:  # fast path of `slot.act`
                    result = slot.step(action)
                    if type(result) is not tuple:
                        result = self._waiter.result(result)
                    if result[2] or result[3]:
                        result = slot.ended_here(result) or self._waiter.result(
                            drive(slot.ended(result))
                        )
                else:
                    result = self._waiter.result(drive(slot.act(action)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a failure is data
                result = slot.run(slot.fail("step", error), self._waiter)
            flat += result
        if len(flat) != 5 * len(slots):  # possible if an environment overrides `step`
            raise ContractError(
                "step() must return (observation, reward, terminated, truncated, info)"
            )
        return Batch(flat[::5], flat[1::5], flat[2::5], flat[3::5], flat[4::5])

    def close(self) -> None:
        """Close all environments. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            if slot.env is not None:
                close_here(slot.env, self._waiter.result)
        self._waiter.close()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resets(
        self,
        seed: int | Sequence[int | None] | None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None,
        indices: Sequence[int] | None,
    ) -> list[tuple[int, Slot, int, Mapping[str, Any] | None]]:
        self._check_open()
        chosen = (
            list(range(self.num_envs))
            if indices is None
            else [self._checked_index(i) for i in indices]
        )
        if len(set(chosen)) != len(chosen):
            raise ConfigError(f"reset() got the same index twice: {chosen}")
        if seed is None:
            seeds: list[int | None] = [None] * len(chosen)
        elif isinstance(seed, Sequence) and not isinstance(seed, (str, bytes)):
            seeds = list(seed)
        elif isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0:
            seeds = [seed + i for i in chosen]
        else:
            raise ConfigError(
                f"seed must be an integer of 0 or more, a sequence of them, or None; got {seed!r}"
            )
        each = (
            [options] * len(chosen)
            if options is None or isinstance(options, Mapping)
            else list(options)
        )
        if len(seeds) != len(chosen) or len(each) != len(chosen):
            raise ConfigError(
                f"reset() of {len(chosen)} environments got {len(seeds)} seeds "
                f"and {len(each)} options; pass one per environment"
            )
        return [
            (i, self._slots[i], secrets.randbits(32) if s is None else s, o)
            for i, s, o in zip(chosen, seeds, each, strict=True)
        ]

    def _check_open(self) -> None:
        if self._closed:
            raise ResetNeededError("the vector is closed; make a new one")

    def _checked_index(self, i: Any) -> int:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < self.num_envs:
            raise ConfigError(f"{i!r} is not an index of a vector of {self.num_envs} environments")
        return i

    def _checked_actions(
        self, actions: Sequence[str] | Mapping[int, str]
    ) -> tuple[Sequence[int], Collection[str]]:
        """Return indices and actions; check all of them before the first step."""
        self._check_open()
        if isinstance(actions, Mapping):
            indices: Sequence[int] = [self._checked_index(i) for i in actions]
            texts: Collection[str] = actions.values()
        elif isinstance(actions, (str, bytes)) or not isinstance(actions, Sequence):
            raise ConfigError(
                f"step() got {type(actions).__name__}; expected a list of {self.num_envs} actions, "
                "or a mapping from index to action"
            )
        elif len(actions) != self.num_envs:
            raise ConfigError(
                f"step() got {len(actions)} actions for {self.num_envs} environments; "
                "pass a mapping from index to action to step some of them"
            )
        else:
            indices, texts = range(self.num_envs), actions
        if countOf(map(type, texts), str) != len(texts):
            for i, action in zip(indices, texts, strict=True):
                if not isinstance(action, str):
                    raise ActionTypeError(
                        f"the action for environment {i} must be a string; "
                        f"got {type(action).__name__} {action!r}"
                    )
        if self._may_need_reset:
            for i in indices:
                slot = self._slots[i]
                if not slot.running and (self.autoreset is Autoreset.DISABLED or not slot.started):
                    raise ResetNeededError(
                        f"environment {i} has no running episode: call reset(indices=[{i}]) first"
                    )
            self._may_need_reset = self.autoreset is Autoreset.DISABLED or not all(
                slot.started for slot in self._slots
            )
        return indices, texts

    def _advance(
        self, work: Mapping[int, Generator[Any, Any, StepResult]], where: str
    ) -> list[StepResult]:
        return [self._slots[i].run(steps, self._waiter) for i, steps in work.items()]
