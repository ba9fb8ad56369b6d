"""One body of code over results and awaitables: what an environment answers at once, and what it only promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, TypeVar, cast

__all__ = ["after", "drive"]

T = TypeVar("T")
R = TypeVar("R")


def after(value: T | Awaitable[T], then: Callable[[T], R]) -> R | Awaitable[R]:
    """`then(value)`, now or once `value` has been awaited."""
    if type(value) is not tuple and isawaitable(value):  # the first test is the common case, and 20 times faster

        async def later() -> R:
            return then(await value)

        return later()
    return then(value)


def drive(steps: Generator[Any, Any, R]) -> R | Awaitable[R]:
    """Runs a wrapper's generator; turns into an awaitable at the first awaitable it yields."""
    try:
        value = next(steps)
        while type(value) is tuple or not isawaitable(value):
            value = steps.send(value)
    except StopIteration as stop:
        result: R = stop.value
        return result
    return _drive_awaiting(steps, value)


async def _drive_awaiting(steps: Generator[Any, Any, R], value: Any) -> R:
    try:
        while True:
            if isawaitable(value):
                try:
                    value = await value
                except BaseException as error:  # noqa: BLE001 - handed to the wrapper, which may know what to do with it
                    value = steps.throw(error)
                    continue
            value = steps.send(value)
    except StopIteration as stop:
        return cast(R, stop.value)
