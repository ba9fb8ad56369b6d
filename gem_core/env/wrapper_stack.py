"""Wrapper stack: the wrappers around an environment, by name, from Python, a command line or a YAML file."""

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
"""A name, `name(key=value)`, a (name, arguments) pair, a one-key mapping {name: arguments}, or a callable."""


@dataclass(frozen=True)
class WrapperSpec:
    """What is known of a wrapper without importing it."""

    name: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "wrapper"
    """`format` for an action format, of which a stack holds one; `tool` for one that adds a tool; else `wrapper`."""
    summary: str = ""
    extra: str = ""

    def load(self) -> Callable[..., Any]:
        """The class or function behind the entry point."""
        return load_entry_point(self.entry_point, f"wrapper {self.name!r}", self.extra)


wrappers: Catalog[WrapperSpec] = Catalog("wrapper", "gem-rl wrappers")


def register_wrapper(
    name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any
) -> WrapperSpec:
    """Registers a wrapper under a name that `make(..., wrappers=[name])` and command lines take."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(
            f"{name!r} is no wrapper name; use lower-case letters, digits, '_', '+', '.' and '-'"
        )
    check_entry_point(entry_point, f"wrapper {name!r}")
    entry = WrapperSpec(name, entry_point, **facts)
    wrappers.add(name, entry, replace=replace)
    return entry


def parse_wrappers(given: Sequence[WrapperLike] | str) -> list[WrapperLike]:
    """(name, arguments) pairs from what a command line, a YAML file or Python gives; callables are left as they are."""
    if isinstance(given, str):
        given = _split_wrappers(given)
    elif isinstance(given, Mapping):
        given = list(given.items())
    pairs: list[WrapperLike] = []
    for item in given:
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
                f"{item!r} is no wrapper; give a name, 'name(key=value)', (name, {{...}}), {{name: {{...}}}} or a callable"
            )
    return pairs


def wrapper_stack(
    default: Sequence[WrapperLike] | str, given: Sequence[WrapperLike] | str
) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
    """The default wrappers and the caller's, innermost first; the caller's action format replaces the default one."""

    def looked_up(
        items: Iterable[WrapperLike],
    ) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
        return [(wrappers.get(i[0]), i[1]) if isinstance(i, tuple) else (i, {}) for i in items]

    def is_format(entry: WrapperSpec | Callable[..., Any]) -> bool:
        return isinstance(entry, WrapperSpec) and entry.kind == "format"

    own, theirs = looked_up(parse_wrappers(default)), looked_up(parse_wrappers(given))
    formats = [e.name for e, _ in theirs if isinstance(e, WrapperSpec) and e.kind == "format"]
    if len(formats) > 1:
        raise ConfigError(
            f"the wrappers {formats} are all action formats; an environment takes one"
        )
    if formats:
        own = [pair for pair in own if not is_format(pair[0])]
    return own + theirs


def wrap(env: Env, entry: WrapperSpec | Callable[..., Any], more: Mapping[str, Any]) -> Env:
    """Put one wrapper around an environment."""
    build, arguments, what = built(entry, more)
    check_arguments(build, arguments, what, skip_first=True)
    wrapped = build(env, **arguments)
    if not isinstance(wrapped, Wrapper):
        raise RegistrationError(
            f"{what} returned {type(wrapped).__name__}; it must return a gem_core Wrapper"
        )
    return wrapped


def built(
    entry: WrapperSpec | Callable[..., Any], more: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """What makes a wrapper, with which arguments, and what it is called."""
    if isinstance(entry, WrapperSpec):
        return entry.load(), {**entry.kwargs, **more}, f"wrapper {entry.name!r}"
    return entry, dict(more), f"wrapper {callable_name(entry)}"


def callable_name(item: Any) -> str:
    """`module.name` of a callable, for messages and records."""
    return f"{getattr(item, '__module__', '?')}.{getattr(item, '__qualname__', repr(item))}"


def _split_wrappers(text: str) -> list[str]:
    """Splits at commas outside brackets and quotes; blanks around a name do not matter."""
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
