"""Dataset: the file that OpenRLHF reads, one row per seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_openrlhf.config import GemConfig

__all__ = ["first_label", "write_dataset"]


def write_dataset(config: GemConfig, path: str | Path, *, evaluation: bool = False) -> Path:
    """Write one row per seed as JSON lines for `--data.prompt_dataset`, and return the path.

    `evaluation`: write the seeds to evaluate on instead of the seeds to train on.
    """
    seeds = config.held_out_seeds if evaluation else config.train_seeds
    if not seeds:
        field = "eval_seeds" if evaluation else "seeds"
        raise ConfigError(f"the config has no seeds to write to {path}; set GemConfig({field}=...)")
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ConfigError(
            "OpenRLHF reads the format of a dataset from its file name: expected a name that ends "
            f"in .jsonl, got {path.name!r}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"input": f"{config.env_id} #{seed}", "label": label}
        for seed, label in zip(seeds, config.labels(seeds))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def first_label(data: Any) -> Any:
    """Return the first label of the dataset, or None if it is not a local .jsonl file."""
    path = Path((data.prompt_dataset or "").split(",")[0].strip())
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    with path.open(encoding="utf-8") as file:
        return json.loads(file.readline() or "{}").get(data.label_key, "")
