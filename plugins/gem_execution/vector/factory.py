"""`make_vec`: make a vector of environments, in this process or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from gem_core.env.base import Env
from gem_core.env.registry import make
from gem_core.errors import ConfigError
from gem_core.plugins.entry_points import load_entry_point
from gem_execution.vector.async_env import AsyncVectorEnv
from gem_execution.vector.env import VectorEnv
from gem_execution.vector.slot import Autoreset

__all__ = ["make_vec"]


def make_vec(
    ids: str | Callable[[], Env] | Sequence[str | Callable[[], Env]],
    num_envs: int | None = None,
    *,
    wrappers: Sequence[Any] | str = (),
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    mode: Literal["sync", "async", "ray"] = "sync",
    autoreset: Autoreset | str = Autoreset.NEXT_STEP,
    execution: Literal["declared", "process"] = "declared",
    deadline: float | None = None,
    **more: Any,
) -> VectorEnv:
    """Make a vector of `num_envs` copies of one environment, or of one environment per entry.

    `wrappers` apply to every environment. `env_kwargs` is one mapping for all environments, or a
    sequence with one per environment. `more` are options of `mode="ray"`, such as `hosts`.
    """
    each = (
        [ids] * (1 if num_envs is None else num_envs)
        if isinstance(ids, str) or callable(ids)
        else list(ids)
    )
    if num_envs is not None and len(each) != num_envs:
        raise ConfigError(
            f"make_vec() got {len(each)} environments and num_envs={num_envs}; remove num_envs"
        )
    if env_kwargs is None or isinstance(env_kwargs, Mapping):
        kwargs: list[Mapping[str, Any]] = [env_kwargs or {}] * len(each)
    else:
        kwargs = list(env_kwargs)
        if len(kwargs) != len(each):
            raise ConfigError(
                f"make_vec() got {len(each)} environments and {len(kwargs)} env_kwargs; "
                "pass one mapping for all environments, or one per environment"
            )
    if mode == "ray":
        if execution != "declared":
            raise ConfigError(
                "make_vec(mode='ray') runs environments in the way they declare; "
                f"remove execution={execution!r}"
            )
        make_ray_vec = load_entry_point(
            "gem_execution.ray_hosts:make_ray_vec", "mode='ray'", extra="ray"
        )
        vector: VectorEnv = make_ray_vec(
            each, kwargs, wrappers=wrappers, autoreset=autoreset, deadline=deadline, **more
        )
        return vector
    if mode not in ("sync", "async"):
        raise ConfigError(f"mode must be 'sync', 'async' or 'ray'; got {mode!r}")
    if more:
        raise ConfigError(
            f"make_vec(mode={mode!r}) does not take {sorted(more)}; "
            "pass arguments of the environments in env_kwargs"
        )
    makers = [
        partial(make, id, wrappers=wrappers, execution=execution, **k)
        if isinstance(id, str)
        else id
        for id, k in zip(each, kwargs, strict=True)
    ]
    names = [id if isinstance(id, str) else getattr(id, "__qualname__", repr(id)) for id in each]
    if mode == "async":
        return AsyncVectorEnv(makers, autoreset=autoreset, env_ids=names, deadline=deadline)
    if deadline is not None:
        raise ConfigError("mode='sync' cannot interrupt a step; use a deadline with mode='async'")
    return VectorEnv(makers, autoreset=autoreset, env_ids=names)
