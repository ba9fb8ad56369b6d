"""Dataset: the seeds to train and validate on, as a verl dataset without files.

`data.custom_cls` selects it. `data.train_files=train` and `data.val_files=val` name its two splits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from gem_core.errors import ConfigError
from gem_core.training.config import FIRST_HELD_OUT_SEED
from gem_verl.config import GemConfig, plain

__all__ = ["GemDataset", "row_of"]


class GemDataset(Dataset):  # type: ignore[misc]
    """Dataset with one row per seed, which verl plays `rollout.n` times."""

    def __init__(
        self,
        data_files: Any,
        tokenizer: Any = None,
        config: Any = None,
        processor: Any = None,
        max_samples: int = -1,
        **_: Any,
    ) -> None:
        """Create the dataset; verl calls it. `config` is the section `data` of verl's settings."""
        split = data_files if isinstance(data_files, str) else ",".join(map(str, data_files or ()))
        if split not in ("train", "val"):
            raise ConfigError(
                "with GemDataset, data.train_files must be 'train' and data.val_files 'val'; "
                f"got {split!r}"
            )
        if config is None or not config.get("gem"):
            raise ConfigError(
                "GemDataset needs the environment; set data.gem, as in "
                "+data.gem.env_id=game:Wordle-v0"
            )
        gem_config = GemConfig.from_dict(plain(config.gem), where="data.gem")
        if split == "train":
            self.tasks = [(gem_config.env_id, seed, False) for seed in gem_config.train_seeds]
        else:  # verl rejects an empty validation set even if it never validates
            seeds = gem_config.held_out_seeds or [FIRST_HELD_OUT_SEED]
            self.tasks = [
                (env_id, seed, env_id != gem_config.env_id)
                for env_id in gem_config.validated
                for seed in seeds
            ]
        if max_samples > 0:
            self.tasks = self.tasks[:max_samples]
        self.evaluation = split == "val"

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, item: int) -> dict[str, Any]:
        env_id, seed, other = self.tasks[item]
        return row_of(env_id, seed, item, other, self.evaluation)


def row_of(
    env_id: str, seed: int, index: int = 0, other: bool = False, evaluation: bool = False
) -> dict[str, Any]:
    """Return a dataset row for verl.

    A Parquet file of your own needs `data_source`, `prompt` (here `raw_prompt`) and `extra_info`.
    `other`: the environment is not the agent loop's own, so the row names it. `evaluation`: the
    record marks the episode.
    """
    fields: dict[str, Any] = {"seed": seed}
    if other:
        fields["env_id"] = env_id
    if evaluation:
        fields["evaluation"] = True
    return {
        "data_source": env_id,
        "raw_prompt": [{"role": "user", "content": f"{env_id} #{seed}"}],
        "extra_info": {"index": index, "gem": fields},
        "index": index,
        "reward_model": {"style": "environment", "ground_truth": ""},
        "tools_kwargs": {},
        "interaction_kwargs": {},
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),  # verl's batches need a tensor
    }
