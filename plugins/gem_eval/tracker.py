"""Tracker plugin: log the metrics of a training run to Weights & Biases or trackio.

    with Tracker("trackio", project="gem", name="seed 0", config={"gamma": 0.9}):
        train()  # also logs every MetricsFile.write()

The tracker listens to the event `update_end`, so a recipe without a framework needs no code for
it. With verl, OpenRLHF, TRL, oat and RL2, use the trainer's own tracker.
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
    """Context manager for one tracked run; keyword arguments go to the library's `init`."""

    def __init__(
        self,
        library: str,
        *,
        project: str = "gem",
        config: Mapping[str, Any] | None = None,
        **init: Any,
    ) -> None:
        if library not in TRACKERS:
            raise ConfigError(f"a tracker is one of {', '.join(TRACKERS)}; got {library!r}")
        self._library = library
        self._init = {"project": project, "config": dict(config or {}), **init}
        self._module = _imported(library)

    @hookimpl
    def update_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Log the metrics of an update, without those that are None."""
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
