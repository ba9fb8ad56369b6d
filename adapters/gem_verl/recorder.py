"""Recorder: writes the episodes in verl's queue to the record, each of them once.

gem's trainers record training episodes when their advantages are known, and evaluation episodes
when verl draws them. Episodes that verl drops, because their group is filtered or too old, are
recorded before it clears them; those that the run did not use, when it ends. If verl drops every
prompt because all its episodes failed, the recorder ends the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import transfer_queue as tq

from gem_core.adapter_kit.batch import as_trained
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.errors import EnvError
from gem_core.records.file import RecordTakenError, WorkerRecords
from gem_core.types import Episode
from gem_verl.batch import episodes_at, session_of

__all__ = ["Recorder", "interrupted_episodes", "unrecorded", "write_when_free"]

_RECORDED = "gem_recorded"
"""The tag of a sequence whose episode is recorded."""
_MARK = "0"
"""Replaces `{rank}` in the path: only the trainer's process writes the record."""
_SECONDS_TO_END = 20.0
"""How long the trainer's process may take to end and to release the record."""


class Recorder:
    """The record of one trainer.

    Ends a run in which verl only drops prompts: it would replace them without end.
    """

    def __init__(self, path: str | None, max_failed: int = 0) -> None:
        """`max_failed`: the number of dropped prompts without a finished episode, in a row, after
        which the run ends; 0 for no limit.
        """
        self._path, self._max_failed, self._failed = path, max_failed, 0
        self._records = WorkerRecords(_MARK)

    def write_trained(
        self, batch: Any, played: PlayedBatch, per_turn: Sequence[Sequence[float]], update: int
    ) -> None:
        """Record the episodes of a batch with their advantages."""
        if self._path is None:
            return
        episodes = [as_trained(e, a, update) for e, a in zip(played.episodes, per_turn)]
        self._records.write(self._path, episodes)
        _mark(batch.keys, batch.partition_id)

    def write_queued(self, partition_id: str, keys: Iterable[str]) -> None:
        """Record the episodes at some keys of the queue as they are."""
        keys = list(keys)
        if self._path is None or not keys:
            return
        self._records.write(self._path, episodes_at(keys, partition_id))
        _mark(keys, partition_id)

    def watch(self, buffer: Any) -> None:
        """Record what a replay buffer draws for evaluation, and what it drops."""
        sample, clear = buffer.sample, getattr(buffer, "_clear_groups", None)

        def sample_and_record(*args: Any, **kwargs: Any) -> Any:
            batch, metrics = sample(*args, **kwargs)
            self._failed = 0
            if batch.partition_id == "val":
                self.write_queued("val", batch.keys)
            return batch, metrics

        def record_and_clear(partition_id: str, uids: set[str]) -> None:
            keys = [key for key in buffer.partitions[partition_id] if key.split("_")[0] in uids]
            self.write_queued(partition_id, keys)
            self._count_failed(uids, buffer.failure_keys[partition_id], keys, partition_id)
            if clear is not None:
                clear(partition_id, uids)

        buffer.sample = sample_and_record
        if clear is not None:  # a sampler of the user's own may have none
            buffer._clear_groups = record_and_clear

    def _count_failed(
        self, uids: set[str], broken: set[str], keys: Sequence[str], partition_id: str
    ) -> None:
        """Count dropped prompts; raise if there are too many without a finished episode."""
        if not self._max_failed:
            return
        episodes = episodes_at(keys, partition_id)
        if any(not episode.failed for episode in episodes):
            self._failed = 0
            return
        self._failed += len(uids)
        if self._failed >= self._max_failed:
            cause = (
                f"the last failure is: {episodes[-1].failure}"
                if episodes
                else "the errors are in the log of verl's agent loop workers"
            )
            raise EnvError(
                f"no episode of the last {self._failed} prompts could be used "
                f"({len(uids & broken)} of the last {len(uids)} had an error outside the "
                f"environment), and verl would replace them without end; {cause}. Set "
                "max_failed_updates=0 to continue regardless"
            )

    def close(self) -> None:
        """Record the episodes that remain in the queue, and close the file."""
        if self._path is not None:
            for partition_id, keys in unrecorded().items():
                self.write_queued(partition_id, keys)
        self._records.close()


def unrecorded() -> dict[str, list[str]]:
    """Return the keys of sequences in verl's queue whose episodes are not recorded yet."""
    partitions = tq.kv_list() or {}
    return {
        partition_id: [
            key
            for key, tag in items.items()
            if session_of(key)
            and not tag.get("is_prompt", False)
            and not tag.get("is_padding", False)
            and not tag.get(_RECORDED, False)
        ]
        for partition_id, items in partitions.items()
    }


def interrupted_episodes() -> list[Episode]:
    """Return the episodes that an interrupted run has played but not recorded.

    For the main process of a run, before it ends Ray.
    """
    import ray

    episodes: list[Episode] = []
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except Exception:  # noqa: BLE001 - interrupted before the queue started
        return episodes
    tq.init()
    for partition_id, keys in unrecorded().items():
        for key in keys:
            with suppress(Exception):  # the trainer has recorded and cleared it meanwhile
                episodes += episodes_at([key], partition_id)
    return episodes


def write_when_free(path: str | None, episodes: Sequence[Episode]) -> None:
    """Record episodes after the trainer's process, which holds the file, has ended."""
    records, end = WorkerRecords(_MARK), time.monotonic() + _SECONDS_TO_END
    while path is not None and episodes:
        try:
            records.write(path, episodes)
            break
        except RecordTakenError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    records.close()


def _mark(keys: Sequence[str], partition_id: str) -> None:
    tq.kv_batch_put(
        keys=list(keys), partition_id=partition_id, tags=[{_RECORDED: True} for _ in keys]
    )
