"""Patching: temporarily replace a framework's function or class, after checking its signature."""

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

    `parameters`: the parameter names that the original must have, separated by spaces; for a Ray
    actor class, those of its constructor. Another signature raises `ConfigError`.
    """
    where = f"{getattr(owner, '__name__', owner)}.{name}"
    original = getattr(owner, name, None)
    if original is None:
        raise ConfigError(
            f"{where} does not exist in the installed version; "
            "install a version that the adapter supports"
        )
    if parameters is not None:
        actual = " ".join(_parameters(original))
        if actual != parameters:
            raise ConfigError(
                f"{where} takes ({actual}) in the installed version, "
                f"but the adapter was written for ({parameters}); "
                "install a version that the adapter supports"
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
    """Return the parameter names of a function or class; a Ray actor class hides them."""
    actor_class = getattr(getattr(function, "__ray_metadata__", None), "modified_class", function)
    return [name for name in inspect.signature(actor_class).parameters if name != "_ray_trace_ctx"]
