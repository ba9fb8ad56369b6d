"""RemoteEnv: base class of proxies for environments in other processes or on other machines.

A proxy sends a method name and its arguments. The answer is (True, result) or (False, error as
data). Wrappers stay with the proxy.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from inspect import isclass
from typing import Any, cast

from gem_core.env.base import Env, ResetResult
from gem_core.env.maybe_async import after
from gem_core.errors import ContractError, EnvError
from gem_core.plugins.entry_points import EntryPoint, load_entry_point
from gem_core.types import Failure

__all__ = ["RemoteEnv", "as_data", "build", "described", "from_data", "perform"]

_EXAMPLE = "$action_example"
"""Info key of a reset's answer for the action example, which saves a second call."""


class RemoteEnv(Env):
    """Base class of proxies; it reads class attributes of the environment without a call."""

    _example: str | None = None

    def __init__(self, entry_point: EntryPoint, kwargs: Mapping[str, Any] | None = None) -> None:
        """`entry_point`: a callable or 'module:name', as in `register`."""
        self.entry_point, self.kwargs = entry_point, dict(kwargs or {})

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of `perform` remotely and wait for the answer."""
        raise NotImplementedError

    def _check_reset(self, result: ResetResult) -> ResetResult:
        result = super()._check_reset(result)
        self._example = result[1].pop(_EXAMPLE, None)
        return result

    def sample_action(self) -> str:
        return cast(str, self.ask("sample_action"))

    def vary_actions(self, number: int) -> None:
        self.ask("vary_actions", number)

    @property
    def plays_at_random(self) -> bool:
        """Whether the class of the environment defines `sample_action`."""
        return self._declared("sample_action") is not Env.sample_action

    def attribute(self, name: str) -> Any:
        """Return a copy of an attribute of the remote environment."""
        return self.ask("attribute", name)

    @property
    def accepted_options(self) -> frozenset[str]:
        return cast("frozenset[str]", self._declared("option_names"))

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """Whether the class of the environment declares itself deterministic."""
        return cast(bool, self._declared("deterministic"))

    @property
    def action_example(self) -> str:  # type: ignore[override]
        """Example action: the class's before the first reset, then that of the episode."""
        if self._phase == "new":
            return cast(str, self._declared("action_example"))
        if self._example is None:  # the episode was restored
            self._example = cast(str, self.attribute("action_example"))
        return self._example

    def _declared(self, name: str) -> Any:
        loaded = load_entry_point(self.entry_point, described(self.entry_point))
        return getattr(loaded if isclass(loaded) else Env, name)  # a function declares nothing


def build(entry_point: EntryPoint, kwargs: Mapping[str, Any]) -> Env:
    """Make the environment on the remote side."""
    env = load_entry_point(entry_point, "a remote environment")(**kwargs)
    if not isinstance(env, Env):
        raise ContractError(
            f"{described(entry_point)} returned {type(env).__name__}; it must return a gem_core Env"
        )
    return env


def perform(env: Env, method: str, args: tuple[Any, ...]) -> Any:
    """Run a method on the remote side; the result of an async environment is awaitable."""
    if method == "start":
        return None  # the caller has made the environment
    if method == "reset":
        return after(
            env.reset(seed=args[0], options=args[1]),
            lambda result: (result[0], {**result[1], _EXAMPLE: env.action_example}),
        )
    if method == "step":
        return env.step(args[0])
    if method == "attribute":
        return getattr(env, args[0])
    if method == "sample_action":
        return env.sample_action()
    if method == "vary_actions":
        return env.vary_actions(args[0])
    return env.close()


def as_data(error: BaseException) -> tuple[bytes | None, str, str]:
    """Convert an error to (pickled error or None, text, traceback)."""
    failure = Failure.from_error(error, "")
    try:
        pickled: bytes | None = pickle.dumps(error)
        pickle.loads(cast(bytes, pickled))
    except Exception:  # noqa: BLE001 - the text replaces an error that cannot be pickled
        pickled = None
    return pickled, f"{failure.kind}: {failure.message}", failure.traceback


def from_data(data: tuple[bytes | None, str, str]) -> Exception:
    """Restore a remote error, with the remote traceback as its cause."""
    pickled, text, trace = data
    try:
        error = pickle.loads(pickled) if pickled is not None else None
    except Exception:  # noqa: BLE001 - only the remote side knows its class; keep the text
        error = None
    if not isinstance(error, Exception):
        error = EnvError(text)
    error.__cause__ = _RemoteTraceback(trace)
    return error


def described(entry_point: EntryPoint) -> str:
    """Return the name of an entry point, for messages."""
    if isinstance(entry_point, str):
        return entry_point
    return str(getattr(entry_point, "__qualname__", repr(entry_point)))


class _RemoteTraceback(Exception):
    """The traceback on the remote side, shown as the cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
