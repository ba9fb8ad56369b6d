"""Progress: what a run needs to resume if its trainer has no training loop of its own.

These are the seeds of each update, and a file that names the last checkpoint.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gem_core.adapter_kit.settings import Rejection, reject
from gem_core.errors import RecordError

__all__ = ["changed_settings", "read_checkpoint", "seeds_of_update", "write_checkpoint"]

_NAME = "checkpoint.json"


def seeds_of_update(
    seeds: Sequence[int], update: int, batch_size: int, samples: int = 1, seed: int = 0
) -> list[int]:
    """Return the seeds of an update, counted from 0: `batch_size` seeds, each `samples` times.

    They depend on the number of the update only, so a resumed run has the same. Each pass over the
    seeds has its own order, and skips the last seeds if they do not fill a batch.
    """
    epoch, batch = divmod(update, len(seeds) // batch_size)
    order = list(seeds)
    random.Random(f"{seed}/{epoch}").shuffle(order)
    chosen = order[batch * batch_size : (batch + 1) * batch_size]
    return [each for each in chosen for _ in range(samples)]


def read_checkpoint(
    folder: str | os.PathLike[str], total_updates: int, **same: Any
) -> dict[str, Any]:
    """Return what was written last to a run's folder; {} if there is nothing.

    Raises `ConfigError` if the run has no more updates to make, or if a setting in `same` differs
    from that of the run that wrote it.
    """
    path = Path(folder) / _NAME
    if not path.exists():
        return {}
    try:
        saved: dict[str, Any] = json.loads(path.read_text("utf-8"))
        done = int(saved["updates"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is not a checkpoint file: {error!r}; remove it") from error
    reject(
        [
            *changed_settings(path, saved, same),
            (
                done >= total_updates,
                f"{path} has {done} updates, and updates={total_updates}, the total, is not more; "
                "raise it, or use another folder",
            ),
        ]
    )
    return saved


def changed_settings(
    path: str | os.PathLike[str], saved: Mapping[str, Any], same: Mapping[str, Any]
) -> list[Rejection]:
    """Reject settings in `same` that differ from those saved with the checkpoint at `path`."""
    return [
        (
            saved.get(name) != value,
            f"{path} was written with {name}={saved.get(name)!r:.80}, but this run has "
            f"{value!r:.80}; use the same, or another folder",
        )
        for name, value in same.items()
    ]


def write_checkpoint(folder: str | os.PathLike[str], updates: int, **facts: Any) -> None:
    """Replace the checkpoint file of a run; a killed process leaves the old one or the new one."""
    path = Path(folder) / _NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"updates": updates, **facts}), "utf-8")
    new.replace(path)
