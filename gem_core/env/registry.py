"""Registry: register, look up and create environments by id.

An environment id has the form `namespace:Name[-vN][-variant]`. A mixture is a weighted sum of ids,
`2*game:GuessTheNumber-v0-easy + 1*game:Wordle-v0-easy`, and works like any other environment. So
does `lock.py:Lock`, a class in a file, which need not be registered.
An entry point is a callable or a string `module:name`, which `make` imports.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gem_core.arguments import short, whole_number_or_none
from gem_core.env.base import Env
from gem_core.env.ids import ENV_ID, is_file_id, is_mixture, parse_mixture
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
from gem_core.plugins.source_files import load_file
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

_FACTS = {
    **dict.fromkeys(("summary", "reward", "data", "extra"), str),
    **dict.fromkeys(("deterministic", "offline"), bool),
    "tags": tuple,
}
_PROCESS_ENV = "gem_execution.process:ProcessEnv"


@dataclass(frozen=True)
class EnvSpec:
    """The description of an environment, readable without importing it."""

    id: str
    """`namespace:Name[-vN][-variant]`."""
    entry_point: EntryPoint
    """A callable, or `module:name`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the entry point."""
    wrappers: tuple[Any, ...] = ()
    """The default wrappers, innermost first. The caller's action format replaces the one here."""
    summary: str = ""
    """One line for tables."""
    turns: int | None = None
    """The environment's own turn limit, if any."""
    reward: str = ""
    """`terminal` or `dense`, and the scale."""
    data: str = ""
    """The source of the tasks."""
    extra: str = ""
    """The extra of this distribution that installs the required packages."""
    deterministic: bool = True
    """Whether seed, options and actions determine every observation and reward."""
    offline: bool = True
    """Whether it runs without a network: it downloads no dataset and calls no server."""
    tags: tuple[str, ...] = ()
    """Words to find it by, such as `maths` or `java`."""

    def load(self) -> Callable[..., Any]:
        """Import the entry point and return the class or function."""
        return load_entry_point(self.entry_point, f"environment {self.id!r}", self.extra)


Execution = Literal["here", "declared", "process"] | Callable[[EnvSpec], Env]


environments: Catalog[EnvSpec] = Catalog("environment", "gem-rl envs")


def register(
    id: str,
    entry_point: EntryPoint,
    *,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] | Mapping[str, Any] | str = (),
    replace: bool = False,
    **facts: Any,
) -> EnvSpec:
    """Register an environment. `facts` are the descriptive fields of `EnvSpec`."""
    if not isinstance(id, str) or not ENV_ID.fullmatch(id):
        raise RegistrationError(
            f"{id!r} is not an environment id; "
            "use namespace:Name[-vN][-variant], for example 'game:Wordle-v0-easy'"
        )
    check_entry_point(entry_point, f"environment {id!r}")
    for name, value in facts.items():
        _check_fact(id, name, value)
    if isinstance(wrappers, (str, Mapping)):
        wrappers = parse_wrappers(wrappers)
    entry = EnvSpec(id, entry_point, dict(kwargs or {}), tuple(wrappers), **facts)
    environments.add(id, entry, replace=replace)
    return entry


def _check_fact(id: str, name: str, value: Any) -> None:
    if name == "turns":
        whole_number_or_none(f"turns of {id!r}", value, 1, "no limit")
    elif name not in _FACTS:
        raise RegistrationError(
            f"{name!r} is not a fact of an environment ({id!r}); the facts are: turns, "
            f"{', '.join(_FACTS)}. Arguments of the environment go into kwargs={{...}}"
        )
    elif not isinstance(value, _FACTS[name]):
        expected = _FACTS[name].__name__
        raise RegistrationError(f"{name} of {id!r} must be a {expected}, got {short(value)}")


def spec(id: str) -> EnvSpec:
    """Return the description of an environment or a mixture."""
    if not isinstance(id, str):
        raise ConfigError(
            "an environment id is a string such as 'game:GuessTheNumber-v0-easy', "
            f"got {type(id).__name__} {id!r}"
        )
    if is_file_id(id):
        return _spec_of_file(id.strip())
    if not is_mixture(id):
        return environments.get(id.strip())
    parts = parse_mixture(id)
    members = [spec(member) for member, _ in parts]
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


def _spec_of_file(id: str) -> EnvSpec:
    """Return the description of `file.py:Class`, with the facts that the file registers for it."""
    path, _, name = id.rpartition(":") if not id.endswith(".py") else (id, "", "")
    file = str(Path(path).expanduser().resolve())
    module = load_file(file)
    if not hasattr(module, name):
        classes = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Env)]
        known = " or ".join(f"{path}:{n}" for n in classes if n != "Env") or "a class of Env"
        raise ConfigError(f"{id!r} does not name a class of the file; write {known}")
    build = load_entry_point(f"{file}:{name}", f"environment {id!r}")
    for registered in environments.all().values():
        if registered.entry_point in (build, f"{build.__module__}:{name}"):
            return replace(registered, id=id, entry_point=f"{file}:{name}")
    summary = (build.__doc__ or "").strip().partition("\n")[0]
    deterministic = bool(getattr(build, "deterministic", True))
    return EnvSpec(id, f"{file}:{name}", summary=summary, deterministic=deterministic)


def make(
    id: str,
    *,
    wrappers: Sequence[WrapperLike] | str = (),
    execution: Execution = "here",
    **kwargs: Any,
) -> Env:
    """Create an environment or mixture by id, with wrappers, innermost first.

    Keyword arguments go to the environment, which must accept them. `execution` runs it in this
    process (`here`), as its class declares (`declared`, which the engine uses), in a separate
    process (`process`), or returns it from a function of the spec.
    """
    if execution not in ("here", "declared", "process") and not callable(execution):
        raise ConfigError(
            "execution must be 'here', 'declared', 'process' or a function of the spec, "
            f"got {execution!r}"
        )
    env_spec = spec(id)
    if is_mixture(id):
        kwargs = {"wrappers": tuple(parse_wrappers(wrappers)), "execution": execution, **kwargs}
        stack: list[tuple[WrapperSpec | Callable[..., Any], dict[str, Any]]] = []
    else:
        stack = wrapper_stack(env_spec.wrappers, wrappers)
    build = env_spec.load()
    arguments = {**env_spec.kwargs, **kwargs}
    check_arguments(build, arguments, f"environment {env_spec.id!r}")
    env_spec = replace(env_spec, kwargs=arguments)
    if (
        is_mixture(id)
        or execution == "here"
        or (execution == "declared" and getattr(build, "execution", "") != "process")
    ):
        env = build(**arguments)
    elif callable(execution):
        env = execution(env_spec)
    else:
        process_env = load_entry_point(_PROCESS_ENV, "execution 'process'")
        env = process_env(env_spec.entry_point, arguments)
    if not isinstance(env, Env):
        raise RegistrationError(
            f"the entry point of {env_spec.id!r} must return a gem_core Env, "
            f"got {type(env).__name__}"
        )
    (env if is_mixture(id) else env.unwrapped).spec = env_spec
    for wrapper, wrapper_kwargs in stack:
        env = wrap(env, wrapper, wrapper_kwargs)
    return env


def check_make(
    id: str,
    *,
    wrappers: Sequence[WrapperLike] | str = (),
    options: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Check the names that `make` and `reset` would get, without creating an environment.

    Missing optional packages are ignored: the environment may be created on another machine.
    """
    env_spec, kwargs = spec(id), dict(env_kwargs or {})
    if is_mixture(id):
        for part, _ in parse_mixture(id):
            check_make(part, wrappers=wrappers, options=options)
        kwargs |= {"wrappers": wrappers, "execution": "here"}
    stack = [] if is_mixture(id) else wrapper_stack(env_spec.wrappers, wrappers)
    with suppress(MissingDependencyError):
        build = env_spec.load()
        check_arguments(build, {**env_spec.kwargs, **kwargs}, f"environment {env_spec.id!r}")
        builders = [build]
        for wrapper, wrapper_kwargs in stack:
            builder, arguments, label = built(wrapper, wrapper_kwargs)
            check_arguments(builder, arguments, label, skip_first=True)
            builders.append(builder)
        # An environment with its own `accepted_options` checks its options in `reset`.
        if getattr(build, "accepted_options", None) is Env.accepted_options:
            accepted = {name for b in builders for name in getattr(b, "option_names", ())}
            unknown = ", ".join(repr(name) for name in options or () if name not in accepted)
            if unknown:
                raise OptionError(
                    f"{env_spec.id!r} does not take the option {unknown}; "
                    f"it takes: {', '.join(sorted(accepted)) or 'no options'}"
                )


def list_envs(pattern: str = "*") -> list[str]:
    """Return the ids that match a pattern with `*` and `?`, or that contain the text.

    `lock.py:Lock` matches itself.
    """
    if is_file_id(pattern):
        return [spec(pattern).id]
    if not any(c in pattern for c in "*?["):
        pattern = f"*{pattern}*"
    return [id for id in environments.all() if fnmatch.fnmatchcase(id.lower(), pattern.lower())]


def canonical_wrappers(id: str, wrappers: Sequence[WrapperLike] | str = ()) -> str:
    """Return one string for a wrapper stack; equal stacks give equal strings."""
    pairs = parse_wrappers(wrappers)
    if not is_mixture(id):
        pairs = [
            (e.name, a) if isinstance(e, WrapperSpec) else e
            for e, a in wrapper_stack(spec(id).wrappers, wrappers)
        ]
    return json.dumps(
        [[p[0], p[1]] if isinstance(p, tuple) else callable_name(p) for p in pairs],
        sort_keys=True,
        default=repr,
    )


def wrappers_of(task: Task) -> str:
    """Return `canonical_wrappers` of a task, or their repr if the task is invalid."""
    try:
        return canonical_wrappers(task.env_id, task.wrappers)
    except GemError:  # the failed episode of this task reports it
        return repr(task.wrappers) if task.wrappers else ""


on_registration("register_environments", register)
