"""Registry: environments, wrappers, tools, adapters and estimators, each found by name.

An environment id reads `namespace:Name[-vN][-variant]`. A mixture is written as a weighted sum of ids,
`2*game:GuessTheNumber-v0-easy + 1*game:Wordle-v0-easy`, and is made and trained on like any other environment.
Nothing is imported before it is made: an entry point is a callable or a string `module:name`.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from gem_core.env import Env
from gem_core.errors import ConfigError, MissingDependencyError, OptionError, RegistrationError, UnknownNameError
from gem_core.wrapper import Wrapper

__all__ = [
    "EnvSpec",
    "Names",
    "WrapperSpec",
    "canonical_wrappers",
    "environments",
    "list_envs",
    "make",
    "parse_wrappers",
    "register",
    "register_wrapper",
    "spec",
    "wrappers",
]

_ID = re.compile(r"[a-z][a-z0-9_]*:[A-Za-z0-9][A-Za-z0-9_.]*(-v\d+)?(-[A-Za-z0-9_.-]+)?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_+.-]*")
_TERM = re.compile(r"\s*(?:(?P<weight>[0-9.]+)\s*\*)?\s*(?P<id>[a-z][a-z0-9_]*:[^\s*]+)\s*")

EntryPoint = str | Callable[..., Any]
WrapperLike = Any
"""A name, `name(key=value)`, a (name, arguments) pair, a one-key mapping {name: arguments}, or a callable."""
T = TypeVar("T")


@dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment without importing it."""

    id: str
    entry_point: EntryPoint
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Any, ...] = ()
    """Put around it by default, innermost first. An action format among the caller's wrappers replaces the one here."""
    summary: str = ""
    turns: int | None = None
    """The environment's own turn limit, where it has one."""
    reward: str = ""
    """`terminal` or `dense`, and the scale."""
    data: str = ""
    """Where the tasks come from."""
    extra: str = ""
    """The extra of this distribution that installs what it needs."""
    deterministic: bool = True
    offline: bool = True
    """Whether it runs without a network once the extra is installed: no data set to fetch, no server to ask."""

    def load(self) -> Callable[..., Any]:
        """The class or function behind the entry point."""
        return load_entry_point(self.entry_point, f"environment {self.id!r}", self.extra)


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


Execution = Literal["here", "declared", "process"] | Callable[[EnvSpec], Env]


class Names(Generic[T]):
    """What is registered of one kind, by name. Looking a name up loads the plugins first."""

    def __init__(self, kind: str, command: str = "") -> None:
        self.kind = kind
        self._hint = f"`{command}` lists them all." if command else ""
        self._known: dict[str, T] = {}
        self._owner: dict[str, str] = {}

    def add(self, name: str, value: T, *, replace: bool = False) -> None:
        """Registers a value; a name that is taken is refused and both owners are named."""
        from gem_core.plugins import current_plugin

        owner = current_plugin()
        if name in self._known and not replace:
            raise RegistrationError(
                f"the {self.kind} {name!r} is registered already, by {self._owner[name]}; {owner} wants it too. "
                "Choose another name, or pass replace=True."
            )
        self._known[name], self._owner[name] = value, owner

    def get(self, name: str) -> T:
        """The value under a name, or an error that suggests the nearest ones."""
        from gem_core.plugins import load_plugins

        load_plugins()
        try:
            return self._known[name]
        except (KeyError, TypeError):
            raise UnknownNameError(self.kind, str(name), tuple(self._known), self._hint) from None

    def all(self) -> dict[str, T]:
        """Everything registered, sorted by name."""
        from gem_core.plugins import load_plugins

        load_plugins()
        return dict(sorted(self._known.items()))

    def remove(self, name: str) -> None:
        """Forgets a name (for tests and interactive work)."""
        self._known.pop(name, None)
        self._owner.pop(name, None)


environments: Names[EnvSpec] = Names("environment", "gem-rl envs")
wrappers: Names[WrapperSpec] = Names("wrapper", "gem-rl wrappers")


def register(
    id: str,
    entry_point: EntryPoint,
    *,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    replace: bool = False,
    **facts: Any,
) -> EnvSpec:
    """Registers an environment. `facts` are the descriptive fields of `EnvSpec`."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise RegistrationError(
            f"{id!r} is no environment id; it reads namespace:Name[-vN][-variant], as in 'game:Wordle-v0-easy'"
        )
    check_entry_point(entry_point, f"environment {id!r}")
    entry = EnvSpec(id, entry_point, dict(kwargs or {}), tuple(wrappers), **facts)
    environments.add(id, entry, replace=replace)
    return entry


def register_wrapper(name: str, entry_point: EntryPoint, *, replace: bool = False, **facts: Any) -> WrapperSpec:
    """Registers a wrapper under a name that `make(..., wrappers=[name])` and command lines take."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(f"{name!r} is no wrapper name; use lower-case letters, digits, '_', '+', '.' and '-'")
    check_entry_point(entry_point, f"wrapper {name!r}")
    entry = WrapperSpec(name, entry_point, **facts)
    wrappers.add(name, entry, replace=replace)
    return entry


def spec(id: str) -> EnvSpec:
    """What is known of an environment id, or of a mixture."""
    if not isinstance(id, str):
        raise ConfigError(f"an environment id is a string such as 'game:GuessTheNumber-v0-easy', not {type(id).__name__} {id!r}")
    if not is_mixture(id):
        return environments.get(id.strip())
    parts = parse_mixture(id)
    members = [environments.get(member) for member, _ in parts]
    canonical = " + ".join(f"{weight:g}*{member}" for member, weight in parts)
    turns = [m.turns for m in members]
    return EnvSpec(
        canonical,
        "gem_core.envs.mixture:Mixture",
        {"parts": tuple(parts)},
        summary=f"a weighted mixture of {len(parts)} environments",
        turns=None if None in turns else max(t for t in turns if t is not None),
        extra=",".join(sorted({m.extra for m in members if m.extra})),
        deterministic=all(m.deterministic for m in members),
        offline=all(m.offline for m in members),
    )


def make(
    id: str,
    *,
    wrappers: Sequence[WrapperLike] | str = (),
    execution: Execution = "here",
    **kwargs: Any,
) -> Env:
    """Makes an environment by id or mixture, with wrappers by name put around it, innermost first.

    Keyword arguments go to the environment; one it does not take is refused. `execution`: in this process, as its class
    declares (what the engine does), in a process of its own, or wherever a function of the spec puts it.
    """
    if execution not in ("here", "declared", "process") and not callable(execution):
        raise ConfigError(f"execution must be 'here', 'declared', 'process' or a function of the spec; given: {execution!r}")
    known = spec(id)
    if is_mixture(id):
        kwargs = {"wrappers": tuple(parse_wrappers(wrappers)), "execution": execution, **kwargs}
        stack: list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]] = []
    else:
        stack = _stack(known, wrappers)
    build = known.load()
    arguments = {**known.kwargs, **kwargs}
    _check_arguments(build, arguments, f"environment {known.id!r}")
    known = replace(known, kwargs=arguments)
    if is_mixture(id) or execution == "here" or (execution == "declared" and getattr(build, "execution", "") != "process"):
        env = build(**arguments)
    elif callable(execution):
        env = execution(known)
    else:
        from gem_core.process import ProcessEnv

        env = ProcessEnv(known.entry_point, arguments)
    if not isinstance(env, Env):
        raise RegistrationError(f"the entry point of {known.id!r} returned {type(env).__name__}; it must return a gem_core Env")
    (env if is_mixture(id) else env.unwrapped).spec = known
    for entry, more in stack:
        env = _wrap(env, entry, more)
    return env


def check_make(
    id: str,
    *,
    wrappers: Sequence[WrapperLike] | str = (),
    options: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Raises what `make` and `reset` would say of names they do not know, without making anything.

    Packages that are missing are no matter: an environment may be made on another machine than it is asked for.
    """
    known, given = spec(id), dict(env_kwargs or {})
    if is_mixture(id):
        for part, _ in parse_mixture(id):
            check_make(part, wrappers=wrappers)
        given |= {"wrappers": wrappers, "execution": "here"}
    stack = [] if is_mixture(id) else _stack(known, wrappers)
    with suppress(MissingDependencyError):
        build = known.load()
        _check_arguments(build, {**known.kwargs, **given}, f"environment {known.id!r}")
        kinds = [build]
        for entry, more in stack:
            kind, arguments, what = _built(entry, more)
            _check_arguments(kind, arguments, what, skip_first=True)
            kinds.append(kind)
        if getattr(build, "accepted_options", None) is Env.accepted_options:  # else it decides when it is reset
            takes = {name for kind in kinds for name in getattr(kind, "option_names", ())}
            unknown = [name for name in options or () if name not in takes]
            if unknown:
                shown = ", ".join(sorted(takes)) or "none"
                raise OptionError(f"{known.id!r} does not take the option {', '.join(map(repr, unknown))}; it takes: {shown}")


def list_envs(pattern: str = "*") -> list[str]:
    """The registered ids that match a pattern with `*` and `?`; a pattern without either matches anywhere in the id."""
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    return [id for id in environments.all() if fnmatch.fnmatchcase(id.lower(), pattern.lower())]


def is_mixture(id: str) -> bool:
    """Whether an id is a weighted sum of ids."""
    return isinstance(id, str) and ("+" in id or "*" in id)


def parse_mixture(text: str) -> list[tuple[str, float]]:
    """The (id, weight) pairs of `2*a:A + b:B`; a weight that is left out is 1."""
    parts: list[tuple[str, float]] = []
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        try:
            weight = float(match["weight"] or 1) if match else 0.0
        except ValueError:
            weight = 0.0
        if match is None or weight <= 0:
            raise ConfigError(
                f"{term.strip()!r} in the mixture {text!r} is not weight*id; write it as "
                "'2*game:GuessTheNumber-v0-easy + 1*game:Wordle-v0-easy', with weights above 0"
            )
        parts.append((match["id"], weight))
    return parts


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


def canonical_wrappers(id: str, given: Sequence[WrapperLike] | str = ()) -> str:
    """One string for the whole stack around an environment, so that equal stacks compare equal."""
    pairs = parse_wrappers(given)
    if not is_mixture(id):
        pairs = [(e.name, a) if isinstance(e, WrapperSpec) else e for e, a in _stack(spec(id), given)]
    return json.dumps([[p[0], p[1]] if isinstance(p, tuple) else _callable_name(p) for p in pairs], sort_keys=True, default=repr)


def load_entry_point(entry_point: EntryPoint, what: str, extra: str = "") -> Callable[..., Any]:
    """Imports what an entry point names; an import that fails names the extra that would mend it."""
    if not isinstance(entry_point, str):
        return entry_point
    module, _, name = entry_point.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        if extra and not (error.name or "").startswith(module.partition(".")[0]):
            raise MissingDependencyError(what, extra, str(error)) from error
        raise RegistrationError(f"the entry point {entry_point!r} of {what} cannot be imported: {error}") from error
    except AttributeError as error:
        raise RegistrationError(f"the entry point {entry_point!r} of {what} does not exist: {error}") from error
    if not callable(found):
        raise RegistrationError(f"the entry point {entry_point!r} of {what} is {type(found).__name__}, not something to call")
    return found  # type: ignore[no-any-return]


def _stack(known: EnvSpec, given: Sequence[WrapperLike] | str) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
    """The wrappers of a spec and of a caller, innermost first; a caller's action format takes the place of the spec's."""

    def looked_up(items: Iterable[WrapperLike]) -> list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]]:
        return [(wrappers.get(i[0]), i[1]) if isinstance(i, tuple) else (i, {}) for i in items]

    def is_format(entry: WrapperSpec | Callable[..., Any]) -> bool:
        return isinstance(entry, WrapperSpec) and entry.kind == "format"

    own, theirs = looked_up(parse_wrappers(known.wrappers)), looked_up(parse_wrappers(given))
    formats = [e.name for e, _ in theirs if isinstance(e, WrapperSpec) and e.kind == "format"]
    if len(formats) > 1:
        raise ConfigError(f"the wrappers {formats} are all action formats; an environment takes one")
    if formats:
        own = [pair for pair in own if not is_format(pair[0])]
    return own + theirs


def _wrap(env: Env, entry: WrapperSpec | Callable[..., Any], more: Mapping[str, Any]) -> Env:
    build, arguments, what = _built(entry, more)
    _check_arguments(build, arguments, what, skip_first=True)
    wrapped = build(env, **arguments)
    if not isinstance(wrapped, Wrapper):
        raise RegistrationError(f"{what} returned {type(wrapped).__name__}; it must return a gem_core Wrapper")
    return wrapped


def _built(entry: WrapperSpec | Callable[..., Any], more: Mapping[str, Any]) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """What makes a wrapper, with which arguments, and what it is called."""
    if isinstance(entry, WrapperSpec):
        return entry.load(), {**entry.kwargs, **more}, f"wrapper {entry.name!r}"
    return entry, dict(more), f"wrapper {_callable_name(entry)}"


def _check_arguments(build: Callable[..., Any], arguments: Mapping[str, Any], what: str, *, skip_first: bool = False) -> None:
    if not inspect.isclass(build):
        parameters = list(inspect.signature(build).parameters.values())
    elif build.__init__ is object.__init__:  # its signature would take anything
        parameters = []
    else:
        parameters = list(inspect.signature(build.__init__).parameters.values())[1:]
    if skip_first:
        parameters = parameters[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    takes = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    unknown = [name for name in arguments if name not in takes]
    missing = [n for n, p in takes.items() if p.default is p.empty and n not in arguments]
    if unknown or missing:
        said = f"does not take {', '.join(map(repr, unknown))}" if unknown else f"needs {', '.join(map(repr, missing))}"
        raise ConfigError(f"{what} {said}; it takes: {', '.join(takes) or 'no arguments'}")


def check_entry_point(entry_point: EntryPoint, what: str) -> None:
    if not (callable(entry_point) or (isinstance(entry_point, str) and re.fullmatch(r"[\w.]+:\w+", entry_point))):
        raise RegistrationError(f"the entry point of {what} must be callable or 'module:name', not {entry_point!r}")


def _callable_name(item: Any) -> str:
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
        raise ConfigError(f"cannot read the wrapper {text!r} ({error}); write it as name(key=value, ...)") from None
