"""Record: episodes in a file, one JSON object a line, with the exact ids in the delta form turns keep them in.

The first line is a header, `{"gem_record": 1, ...}`; every further line is an episode. The file only grows, each episode is
one write, and a path that ends in `.gz` is compressed one gzip member per write: whatever a killed process left half written
is the last line or member, which readers pass over and the next writer cuts off. Nothing else can be lost.

    with RecordWriter("run.jsonl.gz") as record:
        run_batch(tasks, policy, renderer, on_episode=record.write)
    episodes = read_episodes("run.jsonl.gz")     # feeds advantages() and token_sequences() without a model

How an episode becomes JSON, and that no secret is written, is `gem_core.records.serialize`.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast
from uuid import uuid4

from gem_core._version import __version__
from gem_core.errors import RecordError
from gem_core.records.redact import Redactor
from gem_core.records.serialize import (
    VERSION,
    episode_from_json,
    episode_to_json,
    from_plain,
    to_plain,
)
from gem_core.types import Episode

try:
    import fcntl
except (
    ImportError
):  # a platform without file locks: two writers on one file are then the user's business
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "RecordTakenError",
    "RecordWriter",
    "WorkerRecords",
    "episodes_after",
    "read_episodes",
    "read_header",
    "record_of",
]

_CHUNK = 1 << 16


class RecordTakenError(RecordError):
    """Raised when a record is being written by somebody else."""


class RecordWriter:
    """Appends episodes to a record; a new file gets a header, an old one loses a half-written tail. Safe to share by threads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        meta: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        sync: bool = False,
        secrets: Iterable[str] = (),
    ) -> None:
        """`meta` goes into the header of a new file. `sync` has each episode survive a power cut, not only a killed process.
        `secrets` are strings to redact besides those found in the environment."""
        self.path = Path(path)
        self.written = 0
        """Episodes written through this object."""
        self._sync = sync
        self._redactor = Redactor(secrets)
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
        )
        self._let_go = weakref.finalize(
            self, os.close, self._file
        )  # with the last reference: the file is locked till then
        try:
            self._take_over(overwrite)
            if os.fstat(self._file).st_size == 0:
                plain = to_plain(dict(meta or {}), self._redactor)
                self._append({"gem_record": VERSION, "gem_version": __version__, "meta": plain})
        except BaseException:
            self.close()
            raise

    def write(self, episode: Episode) -> None:
        """Appends one episode; when it returns, killing the process cannot lose it."""
        if not isinstance(episode, Episode):
            raise RecordError(
                f"write() was given {type(episode).__name__}; a record holds episodes"
            )
        with self._lock:
            self._redactor.refresh()
            self._append(episode_to_json(episode, self._redactor))
            self.written += 1

    def close(self) -> None:
        """Closes the file. Calling it twice is harmless."""
        with self._lock:
            self._file = None
            self._let_go()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_over(self, overwrite: bool) -> None:
        assert self._file is not None
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RecordTakenError(
                    f"{self.path} is being written by somebody else, or an earlier writer in this process was not closed; "
                    "give each writer a file of its own"
                ) from None
        if overwrite:
            os.ftruncate(self._file, 0)
        with self.path.open("rb") as stream:
            end = 0
            for line, behind in _lines(stream, self.path):
                if end == 0:
                    _check_header(line, self.path)
                end = behind
        if end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)  # what a killed writer left half written

    def _append(self, content: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RecordError(f"{self.path} is closed; open a new RecordWriter to append to it")
        line = (
            json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
        )
        try:
            data = line.encode()
        except UnicodeEncodeError:  # half a surrogate pair, as byte-level tokenizers may decode to
            data = (json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n").encode()
        if _compressed(self.path):
            member = zlib.compressobj(6, zlib.DEFLATED, 31)
            data = member.compress(data) + member.flush()
        start = os.fstat(self._file).st_size
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            if self._sync:
                os.fsync(self._file)
        except BaseException:
            os.ftruncate(
                self._file, start
            )  # a full disk must not leave half a line in front of the next one
            raise


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """The episodes of a record, in the order they were written; a half-written tail is passed over."""
    path = Path(path)
    with _open(path) as stream:
        for number, (line, _) in enumerate(_lines(stream, path), 1):
            if number == 1:
                _check_header(line, path)
            else:
                yield _episode_at(line, path, number)


def episodes_after(path: str | os.PathLike[str], offset: int = 0) -> Iterator[tuple[Episode, int]]:
    """The episodes behind an offset of a record, each with the offset behind it: for those who follow a record that grows."""
    path = Path(path)
    with _open(path) as stream:
        stream.seek(offset)
        for number, (line, behind) in enumerate(_lines(stream, path), 1):
            if offset == 0 and number == 1:
                _check_header(line, path)
            else:
                yield _episode_at(line, path, number), offset + behind


def record_of(path: str, mark: str) -> RecordWriter:
    """Opens the record of one worker among several: `{rank}` in the path becomes its mark. A path without it serves one."""
    try:
        return RecordWriter(path.replace("{rank}", mark))
    except RecordTakenError as error:
        if "{rank}" in path:
            raise
        stem, dot, suffixes = Path(path).name.partition(".")
        marked = Path(path).with_name(f"{stem}-{{rank}}{dot}{suffixes}")
        raise RecordTakenError(
            f"the record {path} is being written: by an earlier run of this process, which needs another path, or by another "
            "worker. Each worker needs a file of its own: put {rank}, which stands for the worker, into the path, as in "
            f"{marked}"
        ) from error


class WorkerRecords:
    """The record files of one worker process, opened at the first write. `{rank}` in a path becomes the mark of this worker."""

    def __init__(self, mark: str | None = None) -> None:
        """`mark`: such as a rank; a random one if None."""
        self._mark = (
            uuid4().hex[:8] if mark is None else mark
        )  # no process id, which another machine may have as well
        self._writers: dict[str, RecordWriter] = {}

    def write(self, path: str | None, episodes: Iterable[Episode]) -> None:
        """Append episodes to the record at `path`; None records nothing."""
        if path is None:
            return
        if path not in self._writers:
            self._writers[path] = record_of(path, self._mark)
        for episode in episodes:
            self._writers[path].write(episode)

    def close(self) -> None:
        """Close the files. Writing again reopens them."""
        while self._writers:
            self._writers.popitem()[1].close()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a record: its format version, gem's version and `meta`."""
    path = Path(path)
    with _open(path) as stream:
        for line, _ in _lines(stream, path):
            header = _check_header(line, path)
            return {**header, "meta": from_plain(header.get("meta", {}))}
    raise RecordError(f"{path} is empty; a record begins with a header line")


# Files.


def _compressed(path: Path) -> bool:
    return path.suffix == ".gz"


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RecordError(f"the record {path} cannot be opened: {error}") from error


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Each whole line with the offset in the file behind it; what is half written at the end is left out."""
    if _compressed(path):
        yield from _members(stream, path)
        return
    end = 0
    for line in stream:
        if not line.endswith(b"\n"):
            return
        end += len(line)
        yield line, end


def _members(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """The content of each whole gzip member, which is one line, with the offset behind it."""
    end, number, rest = 0, 0, b""
    while rest or (rest := stream.read(_CHUNK)):
        member = zlib.decompressobj(31)
        parts: list[bytes] = []
        used = 0
        try:
            while True:
                parts.append(member.decompress(rest))
                used += len(rest)
                if member.eof:
                    break
                rest = stream.read(_CHUNK)
                if not rest:
                    return  # the last member is half written
        except zlib.error as error:
            if not rest.strip(b"\0") and not stream.read().strip(b"\0"):
                return  # zeros a crashed machine left behind the end
            raise RecordError(
                f"{path} is damaged at byte {end}, in line {number + 1} or behind it: {error}"
            ) from error
        rest = member.unused_data
        end += used - len(rest)
        number += 1
        yield b"".join(parts), end


def _check_header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
        version = header["gem_record"]
    except (ValueError, KeyError, TypeError):
        raise RecordError(
            f"{path} is no record of gem: its first line is no header with 'gem_record'"
        ) from None
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise RecordError(
            f"{path} is a record of version {version!r}; this gem reads up to version {VERSION}. Use a newer gem to read it."
        )
    return cast("dict[str, Any]", header)


def _episode_at(line: bytes, path: Path, number: int) -> Episode:
    try:
        return episode_from_json(json.loads(line))
    except RecordError as error:
        raise RecordError(f"{path}, line {number}: {error}") from error
    except ValueError as error:
        raise RecordError(f"{path}, line {number}, is damaged: {error}") from error
