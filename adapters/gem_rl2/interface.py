"""Interface: which of two RL2s is installed, and what differs between them beyond names.

The release 0.0.2 and the main branch are different programs under one version number. In the release a class method plays an
episode, with the environment asked for text; in main the environment file itself plays it, and generation can be paused.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal

from gem_core.adapter_kit.declaration import require
from gem_core.errors import ConfigError, MissingDependencyError
from gem_rl2 import ADAPTER

__all__ = ["RL2", "replaced", "start_process_group", "which_rl2"]

RL2 = Literal["release", "main"]
_TOLD_BY: dict[RL2, str] = {"release": "RL2.utils.sglang", "main": "RL2.utils.communication"}


def which_rl2() -> RL2:
    """`release` or `main`, told by a module only that one has; nothing heavy is imported."""
    found = importlib.util.find_spec("RL2")
    if found is None:
        raise MissingDependencyError("gem_rl2", ADAPTER.extra, "there is no module RL2")
    require(ADAPTER)
    for name, module in _TOLD_BY.items():
        if importlib.util.find_spec(module) is not None:
            return name
    raise ConfigError(
        f"gem_rl2 fits rl-square 0.0.2, which has {_TOLD_BY['release']}, and RL2's main branch, which has {_TOLD_BY['main']}; "
        f"the RL2 in {', '.join(found.submodule_search_locations or ())} has neither. Install one of those"
    )


def start_process_group() -> None:
    """RL2's own start of torch.distributed, as its `main` does it; with `torchrun`, as RL2 itself."""
    if which_rl2() == "main":
        import_module("RL2.utils.communication").initialize_global_process_group(True)
    else:
        import_module("RL2.utils.comm").initialize_global_process_group()


@contextmanager
def replaced(module: Any, name: str, value: Any, parameters: str = "") -> Iterator[None]:
    """Puts `value` under a name of RL2's for a while. Where RL2 has changed, it says so instead of replacing something else:
    `parameters` are those the replaced function must take, in order."""
    where = f"{getattr(module, '__name__', module)}.{name}"
    before = getattr(module, name, None)
    if before is None:
        raise ConfigError(f"this RL2 has no {where}, which gem_rl2 replaces; use the release 0.0.2, or the main branch it knows")
    if parameters and (takes := " ".join(inspect.signature(before).parameters)) != parameters:
        raise ConfigError(f"{where} takes ({takes}) in this RL2, not ({parameters}); gem_rl2 does not know this version")
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
