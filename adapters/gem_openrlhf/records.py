"""Records: a Ray actor that writes the episodes of a run, with the advantages they trained with.

Episodes end in the processes of the engines; their advantages are computed later, in the trainer's.
The actor keeps an episode until its advantages are known or OpenRLHF has filtered it out. At the
end of the run, also by Ctrl-C, it writes the episodes that were not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from gem_core.adapter_kit.batch import as_trained
from gem_core.records.file import WorkerRecords
from gem_core.types import Episode

__all__ = ["EpisodeRecorder", "find_recorder", "recording"]

_NAME = "gem_records"  # Ray's namespace is the run's own
_SECONDS_TO_CLOSE = 60.0


class EpisodeRecorder:
    """Writes records, and keeps the episodes whose advantages are not known yet."""

    def __init__(self) -> None:
        self._records = WorkerRecords("0")
        self._waiting: dict[str, tuple[str, Episode]] = {}

    def write(self, path: str, episode: Episode) -> None:
        """Write an episode that is not trained."""
        self._records.write(path, [episode])

    def keep(self, key: str, path: str, episode: Episode) -> None:
        """Keep an episode until its advantages are known."""
        self._waiting[key] = path, episode

    def write_trained(self, update: int, advantages: Mapping[str, Sequence[float]]) -> None:
        """Write the episodes that an update trains, with one advantage per turn."""
        for key, per_turn in advantages.items():
            if key in self._waiting:  # not if its dataset has no record
                path, episode = self._waiting.pop(key)
                self.write(path, as_trained(episode, per_turn, update))

    def write_untrained(self, keys: Iterable[str]) -> None:
        """Write the episodes that OpenRLHF has filtered out."""
        for key in keys:
            if key in self._waiting:
                self.write(*self._waiting.pop(key))

    def close(self) -> None:
        """Write the remaining episodes and close the files."""
        self.write_untrained(list(self._waiting))
        self._records.close()


@contextmanager
def recording() -> Iterator[None]:
    """Run the recorder of this Ray job; `find_recorder` finds it in all its processes."""
    recorder: Any = ray.remote(EpisodeRecorder).options(name=_NAME, num_cpus=0).remote()
    try:
        yield
    finally:
        ray.get(recorder.close.remote(), timeout=_SECONDS_TO_CLOSE)
        ray.kill(recorder)


def find_recorder() -> Any:
    """Return the recorder of this Ray job; None with OpenRLHF's own trainer."""
    if not ray.is_initialized():
        return None
    try:
        return ray.get_actor(_NAME)
    except ValueError:
        return None
