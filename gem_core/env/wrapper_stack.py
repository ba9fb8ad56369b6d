"""Wrapper stacks: the wrappers around an environment, named in Python, a command line or YAML."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gem_core.env.base import Env
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError, RegistrationError
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.entry_points import (
    EntryPoint,
    check_arguments,
    check_entry_point,
    load_entry_point,
)
from gem_core.plugins.manager import on_registration

__all__ = [
    "WrapperLike",
    "WrapperSpec",
    "built",
    "callable_name",
    "parse_wrappers",
    "register_wrapper",
    "wrap",
    "wrapper_stack",
    "wrappers",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9_+.-]*")

WrapperLike = Any
"""A name, `name(key=value)`, (name, arguments), {name: arguments} or a callable."""


@dataclass(frozen=True)
class WrapperSpec:
    """The description of a wrapper, readable without importing it."""

    name: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "wrapper"
    """`format` for an action format (one per stack), `tool` for a tool, otherwise `wrapper`."""
    summary: str = ""
    extra: str = ""

    def load(self) -> Callable[..., Any]:
        """Import the entry point and return the class or function."""
        return load_entry_point(self.entry_point, f"wrapper {self.name!r}", self.extra)


wrappers: Catalog[WrapperSpec] = Catalog("wrapper", "gem-rl wrappers")


def register_wrapper(
    name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any
) -> WrapperSpec:
    """Register a wrapper under a name for `make(..., wrappers=[name])` and command lines."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(
            f"{name!r} is not a wrapper name; use lower-case letters, digits, '_', '+', '.' and '-'"
        )
    check_entry_point(entry_point, f"wrapper {name!r}")
    entry = WrapperSpec(name, entry_point, **facts)
    wrappers.add(name, entry, replace=replace)
    return entry


def parse_wrappers(items: Sequence[Any] | Mapping[str, Any] | str) -> list[WrapperLike]:
    """Return (name, arguments) pairs; callables stay as they are."""
    if isinstance(items, str):
        items = _split_wrappers(items)
    elif isinstance(items, Mapping):
        items = list(items.items())
    elif not isinstance(items, Iterable):
        raise ConfigError(f"wrappers must be a list or a text such as 'boxed', got {items!r}")
    pairs: list[WrapperLike] = []
    for item in items:
        if isinstance(item, str):
            pairs.append(_parse_call(item))
        elif isinstance(item, Mapping) and len(item) == 1:
            ((name, arguments),) = item.items()
            pairs.append((str(name), dict(arguments or {})))
        elif isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str):
            pairs.append((item[0], dict(item[1] or {})))
        elif callable(item):
            pairs.append(item)
        else:
            raise ConfigError(
                f"{item!r} is not a wrapper; "
                "use a name, 'name(key=value)', (name, {...}), {name: {...}} or a callable"
            )
    return pairs


def wrapper_stack(
    default: Sequence[WrapperLike] | str, requested: Sequence[WrapperLike] | str
) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
    """Return the default and the requested wrappers, innermost first.

    A requested action format replaces the default one.
    """

    def look_up(
        items: Iterable[WrapperLike],
    ) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
        return [(wrappers.get(i[0]), i[1]) if isinstance(i, tuple) else (i, {}) for i in items]

    def is_format(entry: WrapperSpec | Callable[..., Any]) -> bool:
        return isinstance(entry, WrapperSpec) and entry.kind == "format"

    inner, outer = look_up(parse_wrappers(default)), look_up(parse_wrappers(requested))
    formats = [e.name for e, _ in outer if isinstance(e, WrapperSpec) and e.kind == "format"]
    if len(formats) > 1:
        raise ConfigError(f"an environment takes one action format, got {formats}")
    if formats:
        inner = [pair for pair in inner if not is_format(pair[0])]
    return inner + outer


def wrap(env: Env, entry: WrapperSpec | Callable[..., Any], kwargs: Mapping[str, Any]) -> Env:
    """Put one wrapper around an environment."""
    build, arguments, label = built(entry, kwargs)
    check_arguments(build, arguments, label, skip_first=True)
    wrapped = build(env, **arguments)
    if not isinstance(wrapped, Wrapper):
        raise RegistrationError(
            f"{label} must return a gem_core Wrapper, got {type(wrapped).__name__}"
        )
    return wrapped


def built(
    entry: WrapperSpec | Callable[..., Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """Return the class or function of a wrapper, its arguments, and its name for messages."""
    if isinstance(entry, WrapperSpec):
        return entry.load(), {**entry.kwargs, **kwargs}, f"wrapper {entry.name!r}"
    return entry, dict(kwargs), f"wrapper {callable_name(entry)}"


def callable_name(item: Any) -> str:
    """Return `module.name` of a callable, for messages and records."""
    return f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', repr(item))}"


def _split_wrappers(text: str) -> list[str]:
    """Split at commas outside brackets and quotes, and strip the parts."""
    parts, depth = [""], 0
    for piece in re.findall(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", text, re.DOTALL):
        depth += (piece in "([{") - (piece in ")]}")
        if piece == "," and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [p.strip() for p in parts if p.strip()]


def _parse_call(text: str) -> tuple[str, dict[str, Any]]:
    text = text.strip()
    if "(" not in text:
        return text, {}
    name, _, rest = text.partition("(")
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("only key=value arguments")
        return name.strip(), {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"cannot read the wrapper {text!r} ({error}); write it as name(key=value, ...)"
        ) from None


on_registration("register_wrappers", register_wrapper)
