"""Progress of a run: the seeds of each update, and the file of the last checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from gem_core.adapter_kit.progress import read_checkpoint, seeds_of_update, write_checkpoint
from gem_core.errors import ConfigError, RecordError


def test_each_pass_plays_every_seed_that_fills_a_batch_once() -> None:
    seeds = range(100, 111)
    batches = [seeds_of_update(seeds, update, 3) for update in range(6)]
    for epoch in (batches[:3], batches[3:]):
        played = [seed for batch in epoch for seed in batch]
        assert len(set(played)) == 9 and set(played) <= set(seeds)
    assert batches[:3] != batches[3:], "each pass has its own order"
    assert batches[4] == seeds_of_update(seeds, 4, 3), "a resumed run has the same seeds"
    assert batches[0] != seeds_of_update(seeds, 0, 3, seed=1)


def test_samples_of_a_seed_are_adjacent() -> None:
    batch = seeds_of_update(range(8), 1, 2, samples=3)
    assert batch == [batch[0]] * 3 + [batch[3]] * 3
    assert batch[0] != batch[3]


def test_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    assert read_checkpoint(folder, 10, rank=4) == {}
    write_checkpoint(folder, 3, rank=4, path="a")
    write_checkpoint(folder, 6, rank=4, path="b")
    assert read_checkpoint(folder, 10, rank=4) == {"updates": 6, "rank": 4, "path": "b"}
    assert [path.name for path in folder.iterdir()] == ["checkpoint.json"]


def test_checkpoint_of_another_run_is_rejected_with_all_reasons(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 6, rank=4)
    with pytest.raises(ConfigError, match="2 settings are rejected") as caught:
        read_checkpoint(tmp_path, 6, rank=8)
    assert "was written with rank=4, but this run has 8" in str(caught.value)
    assert "has 6 updates, and updates=6, the total, is not more; raise it" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"updates": "many"}', '{"rank": 4}'])
def test_damaged_checkpoint_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(RecordError, match=r"checkpoint\.json is not a checkpoint file"):
        read_checkpoint(tmp_path, 10)
