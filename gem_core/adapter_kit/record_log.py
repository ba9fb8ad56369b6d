"""Record log: writes each episode of a trainer's process once, when its fate is known."""

from __future__ import annotations

from collections.abc import Sequence

from gem_core.adapter_kit.batch import as_evaluated, as_trained
from gem_core.records.file import WorkerRecords
from gem_core.types import Episode

__all__ = ["RecordLog"]


class RecordLog:
    """The record of one process: episodes as they were trained, evaluated, or left over."""

    def __init__(self, path: str | None) -> None:
        """None as `path` records nothing; `{rank}` in it becomes 0."""
        self._path, self._records = path, WorkerRecords("0")
        self._waiting: dict[int, Episode] = {}
        """The episodes that were played but not trained yet, by their id()."""
        self.evaluation: list[Episode] = []
        """The evaluated episodes. A trainer empties it when an evaluation begins."""

    def played(self, episodes: Sequence[Episode]) -> None:
        """Keep episodes that will be trained."""
        if self._path is not None:
            self._waiting |= {id(episode): episode for episode in episodes}

    def trained(
        self, episodes: Sequence[Episode], per_turn: Sequence[Sequence[float]], update: int
    ) -> None:
        """Write trained episodes, with their advantages and the update."""
        for episode in episodes:
            self._waiting.pop(id(episode), None)
        self._records.write(
            self._path, [as_trained(e, a, update) for e, a in zip(episodes, per_turn)]
        )

    def evaluated(self, episodes: Sequence[Episode]) -> None:
        """Write episodes of an evaluation."""
        self.evaluation += episodes
        self._records.write(self._path, map(as_evaluated, episodes))

    def close(self) -> None:
        """Write the episodes that were not trained, and close the file."""
        self._records.write(self._path, self._waiting.values())
        self._waiting = {}
        self._records.close()
