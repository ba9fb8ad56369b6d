"""Registry: environments, found and made by id.

An environment id reads `namespace:Name[-vN][-variant]`. A mixture is written as a weighted sum of ids,
`2*game:GuessTheNumber-v0-easy + 1*game:Wordle-v0-easy`, and is made and trained on like any other environment.
Nothing is imported before it is made: an entry point is a callable or a string `module:name`.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gem_core.env.base import Env
from gem_core.env.ids import ENV_ID, is_mixture, parse_mixture
from gem_core.env.wrapper_stack import (
    WrapperLike,
    WrapperSpec,
    built,
    callable_name,
    parse_wrappers,
    wrap,
    wrapper_stack,
)
from gem_core.errors import (
    ConfigError,
    GemError,
    MissingDependencyError,
    OptionError,
    RegistrationError,
)
from gem_core.plugins.catalog import Catalog
from gem_core.plugins.entry_points import (
    EntryPoint,
    check_arguments,
    check_entry_point,
    load_entry_point,
)
from gem_core.plugins.manager import on_registration
from gem_core.types import Task

__all__ = [
    "EnvSpec",
    "canonical_wrappers",
    "environments",
    "list_envs",
    "make",
    "register",
    "spec",
    "wrappers_of",
]

_PROCESS_ENV = "gem_execution.process:ProcessEnv"


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


Execution = Literal["here", "declared", "process"] | Callable[[EnvSpec], Env]


environments: Catalog[EnvSpec] = Catalog("environment", "gem-rl envs")


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
    if not isinstance(id, str) or not ENV_ID.fullmatch(id):
        raise RegistrationError(
            f"{id!r} is no environment id; it reads namespace:Name[-vN][-variant], as in 'game:Wordle-v0-easy'"
        )
    check_entry_point(entry_point, f"environment {id!r}")
    entry = EnvSpec(id, entry_point, dict(kwargs or {}), tuple(wrappers), **facts)
    environments.add(id, entry, replace=replace)
    return entry


def spec(id: str) -> EnvSpec:
    """What is known of an environment id, or of a mixture."""
    if not isinstance(id, str):
        raise ConfigError(
            f"an environment id is a string such as 'game:GuessTheNumber-v0-easy', not {type(id).__name__} {id!r}"
        )
    if not is_mixture(id):
        return environments.get(id.strip())
    parts = parse_mixture(id)
    members = [environments.get(member) for member, _ in parts]
    canonical = " + ".join(f"{weight:g}*{member}" for member, weight in parts)
    turns = [m.turns for m in members]
    return EnvSpec(
        canonical,
        "gem_core.env.mixture:Mixture",
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
        raise ConfigError(
            f"execution must be 'here', 'declared', 'process' or a function of the spec; given: {execution!r}"
        )
    known = spec(id)
    if is_mixture(id):
        kwargs = {"wrappers": tuple(parse_wrappers(wrappers)), "execution": execution, **kwargs}
        stack: list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]] = []
    else:
        stack = wrapper_stack(known.wrappers, wrappers)
    build = known.load()
    arguments = {**known.kwargs, **kwargs}
    check_arguments(build, arguments, f"environment {known.id!r}")
    known = replace(known, kwargs=arguments)
    if (
        is_mixture(id)
        or execution == "here"
        or (execution == "declared" and getattr(build, "execution", "") != "process")
    ):
        env = build(**arguments)
    elif callable(execution):
        env = execution(known)
    else:
        env = load_entry_point(_PROCESS_ENV, "execution 'process'")(known.entry_point, arguments)
    if not isinstance(env, Env):
        raise RegistrationError(
            f"the entry point of {known.id!r} returned {type(env).__name__}; it must return a gem_core Env"
        )
    (env if is_mixture(id) else env.unwrapped).spec = known
    for entry, more in stack:
        env = wrap(env, entry, more)
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
    stack = [] if is_mixture(id) else wrapper_stack(known.wrappers, wrappers)
    with suppress(MissingDependencyError):
        build = known.load()
        check_arguments(build, {**known.kwargs, **given}, f"environment {known.id!r}")
        kinds = [build]
        for entry, more in stack:
            kind, arguments, what = built(entry, more)
            check_arguments(kind, arguments, what, skip_first=True)
            kinds.append(kind)
        if (
            getattr(build, "accepted_options", None) is Env.accepted_options
        ):  # else it decides when it is reset
            takes = {name for kind in kinds for name in getattr(kind, "option_names", ())}
            unknown = [name for name in options or () if name not in takes]
            if unknown:
                shown = ", ".join(sorted(takes)) or "none"
                raise OptionError(
                    f"{known.id!r} does not take the option {', '.join(map(repr, unknown))}; it takes: {shown}"
                )


def list_envs(pattern: str = "*") -> list[str]:
    """The registered ids that match a pattern with `*` and `?`; a pattern without either matches anywhere in the id."""
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    return [id for id in environments.all() if fnmatch.fnmatchcase(id.lower(), pattern.lower())]


def canonical_wrappers(id: str, given: Sequence[WrapperLike] | str = ()) -> str:
    """One string for the whole stack around an environment, so that equal stacks compare equal."""
    pairs = parse_wrappers(given)
    if not is_mixture(id):
        pairs = [
            (e.name, a) if isinstance(e, WrapperSpec) else e
            for e, a in wrapper_stack(spec(id).wrappers, given)
        ]
    return json.dumps(
        [[p[0], p[1]] if isinstance(p, tuple) else callable_name(p) for p in pairs],
        sort_keys=True,
        default=repr,
    )


def wrappers_of(task: Task) -> str:
    """The canonical string of a task's wrappers; equal stacks give equal strings."""
    try:
        return canonical_wrappers(task.env_id, task.wrappers)
    except (
        GemError
    ):  # an environment that is not registered, or a stack that cannot be made: its episode says so
        return repr(task.wrappers) if task.wrappers else ""


on_registration("register_environments", register)
