"""Built once: a cache for values that are costly to build and that all episodes share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

__all__ = ["built_once"]

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


def built_once(build: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
    """Cache a function, like `functools.cache`; concurrent callers wait for the first."""
    cached, lock = cache(build), threading.Lock()

    @wraps(build)
    def value(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Value:
        with lock:
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return value
