"""RemoteEnv: stands here for an environment that lives elsewhere, in another process or on another machine.

What is sent there is a verb and its arguments; what comes back is (True, result) or (False, an error as data). Wrappers stay
here; only the environment itself is elsewhere.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from inspect import isclass
from typing import Any, cast

from gem_core.env.base import Env, ResetResult
from gem_core.env.maybe_async import after
from gem_core.errors import ContractError, EnvError
from gem_core.plugins.entry_points import EntryPoint, load_entry_point

__all__ = ["RemoteEnv", "as_data", "build", "described", "from_data", "perform"]

_EXAMPLE = "$action_example"
"""Where the answer to a reset carries what an action looks like, so that nobody has to ask."""


class RemoteEnv(Env):
    """The base: answers what the class of the environment declares without asking there."""

    _example: str | None = None

    def __init__(self, entry_point: EntryPoint, kwargs: Mapping[str, Any] | None = None) -> None:
        """`entry_point` as in `register`: a callable, or 'module:name'."""
        self.entry_point, self.kwargs = entry_point, dict(kwargs or {})

    def ask(self, what: str, *args: Any) -> Any:
        """Has a verb of `perform` done there, and waits for the answer."""
        raise NotImplementedError

    def _check_reset(self, result: ResetResult) -> ResetResult:
        return self._with_example_kept(super()._check_reset(result))

    def sample_action(self) -> str:
        return cast(str, self.ask("sample_action"))

    def vary_actions(self, number: int) -> None:
        self.ask("vary_actions", number)

    @property
    def plays_at_random(self) -> bool:
        """As the class of the environment declares."""
        return self._declared("sample_action") is not Env.sample_action

    def attribute(self, name: str) -> Any:
        """An attribute of the environment there, as a copy."""
        return self.ask("attribute", name)

    @property
    def accepted_options(self) -> frozenset[str]:
        return cast("frozenset[str]", self._declared("option_names"))

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the class says so."""
        return cast(bool, self._declared("deterministic"))

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """What an action looks like, as the environment itself says once it is there; it may differ from episode to episode."""
        if self._phase == "new":
            return cast(str, self._declared("action_example"))
        if self._example is None:  # the episode was restored
            self._example = cast(str, self.attribute("action_example"))
        return self._example

    def _with_example_kept(self, result: ResetResult) -> ResetResult:
        self._example = result[1].pop(_EXAMPLE, None)
        return result

    def _declared(self, name: str) -> Any:
        made = load_entry_point(self.entry_point, described(self.entry_point))
        return (
            getattr(made, name) if isclass(made) else getattr(Env, name)
        )  # a function declares nothing


def build(entry_point: EntryPoint, kwargs: Mapping[str, Any]) -> Env:
    """Makes the environment, there."""
    env = load_entry_point(entry_point, "a remote environment")(**kwargs)
    if not isinstance(env, Env):
        raise ContractError(
            f"{described(entry_point)} returned {type(env).__name__}; it must return a gem_core Env"
        )
    return env


def perform(env: Env, what: str, args: tuple[Any, ...]) -> Any:
    """Does a verb, there; an awaitable where the environment is async."""
    if what == "reset":
        return after(
            env.reset(seed=args[0], options=args[1]),
            lambda began: (began[0], {**began[1], _EXAMPLE: env.action_example}),
        )
    if what == "step":
        return env.step(args[0])
    if what == "attribute":
        return getattr(env, args[0])
    if what == "sample_action":
        return env.sample_action()
    if what == "vary_actions":
        return env.vary_actions(args[0])
    return env.close()


def as_data(error: Exception) -> tuple[bytes | None, str, str]:
    """An error in a form that can travel: itself if it can be pickled, what it says, and its traceback."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        raised: bytes | None = pickle.dumps(error)
        pickle.loads(cast(bytes, raised))
    except Exception:  # noqa: BLE001 - an error that cannot travel is told in words
        raised = None
    return raised, f"{type(error).__name__}: {error}", trace


def from_data(data: tuple[bytes | None, str, str]) -> Exception:
    """An error that was raised there, to be raised here; its traceback there is its cause."""
    raised, said, trace = data
    try:
        error = pickle.loads(raised) if raised is not None else None
    except Exception:  # noqa: BLE001 - its class is known over there only; what it said is kept
        error = None
    if not isinstance(error, Exception):
        error = EnvError(said)
    error.__cause__ = _RemoteTraceback(trace)
    return error


def described(entry_point: EntryPoint) -> str:
    """The name of an entry point, for messages."""
    return (
        entry_point
        if isinstance(entry_point, str)
        else str(getattr(entry_point, "__qualname__", repr(entry_point)))
    )


class _RemoteTraceback(Exception):
    """The traceback in the other process, shown as the cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
