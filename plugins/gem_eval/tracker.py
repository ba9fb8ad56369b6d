"""Tracker: a plugin that passes the metrics of a training run on to Weights & Biases or trackio, as each update ends.

    with Tracker("trackio", project="gem", name="seed 0", config={"gamma": 0.9}):
        train()                                       # every MetricsFile.write() in it is logged there, too

It listens to the event `update_end`, so that a recipe without a framework has it without a line about it. Trainers have
trackers of their own: with verl, OpenRLHF, TRL, oat and RL2 use theirs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.plugins.manager import hookimpl, register_plugin, unregister_plugin

__all__ = ["TRACKERS", "Tracker"]

TRACKERS = ("wandb", "trackio")


class Tracker:
    """One run, from entering to leaving. Whatever else `init` of the library takes may be given by name."""

    def __init__(
        self,
        library: str,
        *,
        project: str = "gem",
        config: Mapping[str, Any] | None = None,
        **init: Any,
    ) -> None:
        if library not in TRACKERS:
            raise ConfigError(f"a tracker is one of {', '.join(TRACKERS)}; given: {library!r}")
        self._library = library
        self._init = {"project": project, "config": dict(config or {}), **init}
        self._module = _imported(library)

    @hookimpl
    def update_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Logs an update; what is no number is left out."""
        self._module.log(
            {name: value for name, value in metrics.items() if value is not None}, step=step
        )

    def __enter__(self) -> Tracker:
        self._module.init(**self._init)
        register_plugin(self, f"tracker {self._library}")
        return self

    def __exit__(self, *_: object) -> None:
        unregister_plugin(f"tracker {self._library}")
        self._module.finish()


def _imported(library: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingDependencyError(f"tracking with {library}", library, str(error)) from error
