"""Patching: replace a function or class of a framework for a while, and only the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gem_core.errors import ConfigError

__all__ = ["patched"]


@contextmanager
def patched(
    owner: Any, name: str, replacement: Any, parameters: str | None = None
) -> Iterator[Any]:
    """Replace `owner.name` and restore it at the end; yields the original.

    `parameters` are the names the original must take, in order and separated by blanks; those of a Ray actor class are its
    constructor's. A framework version that has another function under that name raises `ConfigError` and nothing is replaced.
    """
    where = f"{getattr(owner, '__name__', owner)}.{name}"
    original = getattr(owner, name, None)
    if original is None:
        raise ConfigError(
            f"{where} does not exist in the installed version; install a version the adapter supports"
        )
    if parameters is not None:
        actual = " ".join(_parameters(original))
        if actual != parameters:
            raise ConfigError(
                f"{where} takes ({actual}) in the installed version; the adapter was written for ({parameters}). Install a "
                "version the adapter supports"
            )
    own = name in vars(owner)  # an inherited attribute is restored by deleting ours
    setattr(owner, name, replacement)
    try:
        yield original
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def _parameters(function: Any) -> list[str]:
    """The parameters of a function or class. A Ray actor class hides them behind (*args, **kwargs) and adds one of Ray's own."""
    actor_class = getattr(getattr(function, "__ray_metadata__", None), "modified_class", function)
    return [name for name in inspect.signature(actor_class).parameters if name != "_ray_trace_ctx"]
