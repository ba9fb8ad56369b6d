"""The gradients of a run, computed from its record without a trainer."""

from __future__ import annotations

import sys
from pathlib import Path

from project import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # last: it also has a module `worlds`

from replay_run import Args, replay

__all__ = ["gradient_norms"]


def gradient_norms(
    folder: Path,
    *,
    model: str = "tiny",
    updates: int | None = None,
    learning_rate: float = 2e-3,
    weight_decay: float = 0.0,
) -> list[float]:
    """Return the norm of each update's gradient, in which every trained token counts equally.

    `folder` has the record of a run with one optimizer step per update. The weights of an update
    come from steps of AdamW with the gradients of the updates before it.
    """
    settings = Args(model, folder, learning_rate, weight_decay, updates, "float32", 8, "cpu")
    return [line["replayed"] for line in replay(settings)]
