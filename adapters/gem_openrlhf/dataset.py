"""Dataset: the rows that OpenRLHF reads, one per seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_openrlhf.config import GemConfig

__all__ = ["first_label", "write_dataset"]


def write_dataset(config: GemConfig, path: str | Path, *, evaluation: bool = False) -> Path:
    """Write one row per seed to train on, or to evaluate on, as JSON lines for `--data.prompt_dataset`."""
    seeds = config.held_out_seeds if evaluation else config.train_seeds
    if not seeds:
        raise ConfigError(
            f"there are no seeds to write to {path}; set {'eval_seeds' if evaluation else 'seeds'}"
        )
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ConfigError(
            f"OpenRLHF reads the format of a data set from its name, which must end in .jsonl; given: {path.name!r}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"input": f"{config.env_id} #{seed}", "label": label}
        for seed, label in zip(seeds, config.labels(seeds))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def first_label(data: Any) -> Any:
    """The first label of the data set, if it is a file that `write_dataset` wrote."""
    path = Path((data.prompt_dataset or "").split(",")[0].strip())
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return json.loads(file.readline() or "{}").get(data.label_key, "")
