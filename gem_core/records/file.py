"""Episode records: JSON-lines files that resume and survive kill -9.

The first line is a header, `{"gem_record": 1, ...}`; every other line is an episode. Each episode
is one append, and one gzip member if the path ends in `.gz`. A killed process can therefore leave
only an incomplete last line, which readers skip and the next writer removes.

    with RecordWriter("run.jsonl.gz") as record:
        run_batch(tasks, policy, renderer, on_episode=record.write)
    episodes = read_episodes("run.jsonl.gz")  # input for advantages() and token_sequences()

`gem_core.records.serialize` converts episodes to JSON and redacts secrets.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
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
except ImportError:  # a platform without file locks cannot detect a second writer
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "NotARecordError",
    "RecordTakenError",
    "RecordWriter",
    "WorkerRecords",
    "episodes_after",
    "read_episodes",
    "read_header",
    "record_of",
]

_CHUNK = 1 << 16
_HEADER = b'{"gem_record'


class NotARecordError(RecordError):
    """Raised when a file has no header of a record."""


class RecordTakenError(RecordError):
    """Raised when another writer has the record open."""


class RecordWriter:
    """Append episodes to a record. Thread-safe.

    Writes a header to a new file, and removes an incomplete last line from an existing one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        meta: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        sync: bool = False,
        secrets: Iterable[str] = (),
    ) -> None:
        """Open a record, to resume or create it.

        `meta` goes into the header of a new file. `sync` makes each episode survive a power cut,
        not only a killed process. `secrets` are redacted, as are those in environment variables.
        """
        self.path = Path(path)
        self.written = 0
        """The number of episodes written through this object."""
        self._sync = sync
        self._redactor = Redactor(secrets)
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
        )
        # Closing releases the lock; without a call to `close`, the garbage collector does it.
        self._close_file = weakref.finalize(self, os.close, self._file)
        try:
            self._lock_and_trim(overwrite)
            if os.fstat(self._file).st_size == 0:
                plain = to_plain(dict(meta or {}), self._redactor)
                self._append({"gem_record": VERSION, "gem_version": __version__, "meta": plain})
        except BaseException:
            self.close()
            raise

    def write(self, episode: Episode) -> None:
        """Append one episode, which then survives a killed process."""
        self.write_all([episode])

    def write_all(self, episodes: Iterable[Episode]) -> None:
        """Append episodes one after the other; faster than a `write` for each."""
        with self._lock:
            self._redactor.refresh()
            for episode in episodes:
                if not isinstance(episode, Episode):
                    raise RecordError(f"a record takes Episodes, got {type(episode).__name__}")
                self._append(episode_to_json(episode, self._redactor))
                self.written += 1

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._file = None
            self._close_file()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock_and_trim(self, overwrite: bool) -> None:
        """Lock the file and remove an incomplete last line, or all lines."""
        assert self._file is not None
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise RecordTakenError(
                    f"another process, or a RecordWriter of this process, has {self.path} open; "
                    "close it or use another path"
                ) from None
            except OSError as error:  # some network file systems have no locks
                if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL):
                    raise
        if overwrite:
            os.ftruncate(self._file, 0)
        with self.path.open("rb") as stream:
            end = 0
            for line, line_end in _lines(stream, self.path):
                if end == 0:
                    _check_header(line, self.path)
                end = line_end
            stream.seek(0)
            first = stream.read(len(_HEADER)).strip(b"\0")
        if end == 0 and not (_compressed(self.path) or _HEADER.startswith(first)):
            _check_header(first, self.path)  # otherwise it is an incomplete header
        if end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)

    def _append(self, content: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RecordError(f"{self.path} is closed; open a new RecordWriter to append to it")
        dumps = partial(json.dumps, separators=(",", ":"), allow_nan=False)
        try:
            data = (dumps(content, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # byte-level tokenizers may decode to half a surrogate pair
            data = (dumps(content) + "\n").encode()
        if _compressed(self.path):
            member = zlib.compressobj(6, zlib.DEFLATED, 31)
            data = member.compress(data) + member.flush()
        start = os.fstat(self._file).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if self._sync:
                os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, start)  # a full disk must not leave half a line
            raise


def read_episodes(path: str | os.PathLike[str]) -> Iterator[Episode]:
    """Read the episodes of a record in file order; skip an incomplete last line."""
    return (episode for episode, _ in episodes_after(path))


def episodes_after(path: str | os.PathLike[str], offset: int = 0) -> Iterator[tuple[Episode, int]]:
    """Read the episodes after an offset, each with its end offset, to follow a growing record."""
    path = Path(path)
    with _open(path) as stream:
        if offset:  # a pipe cannot seek
            stream.seek(offset)
        for number, (line, line_end) in enumerate(_lines(stream, path), 1):
            if offset == 0 and number == 1:
                _check_header(line, path)
            else:
                yield _episode_at(line, path, number), offset + line_end


def record_of(path: str, mark: str) -> RecordWriter:
    """Open the record of one worker: `mark` replaces `{rank}` in the path."""
    try:
        return RecordWriter(path.replace("{rank}", mark))
    except RecordTakenError as error:
        if "{rank}" in path:
            raise
        stem, dot, suffixes = Path(path).name.partition(".")
        marked = Path(path).with_name(f"{stem}-{{rank}}{dot}{suffixes}")
        raise RecordTakenError(
            f"another worker, or an earlier run of this process, has the record {path} open. "
            f"Each worker needs its own file: put {{rank}} into the path, for example {marked}; "
            "a second run needs another path"
        ) from error


class WorkerRecords:
    """The record files of one worker process, opened at the first write."""

    def __init__(self, mark: str | None = None) -> None:
        """`mark`, such as a rank, replaces `{rank}` in paths; None draws a random one."""
        # Random, because a process id may also occur on another machine.
        self._mark = uuid4().hex[:8] if mark is None else mark
        self._writers: dict[str, RecordWriter] = {}

    def write(self, path: str | None, episodes: Iterable[Episode]) -> None:
        """Append episodes to the record at `path`; None records nothing."""
        if path is None:
            return
        if path not in self._writers:
            self._writers[path] = record_of(path, self._mark)
        self._writers[path].write_all(episodes)

    def close(self) -> None:
        """Close the files. Writing again reopens them."""
        while self._writers:
            self._writers.popitem()[1].close()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the header of a record: format version, gem version and `meta`."""
    path = Path(path)
    with _open(path) as stream:
        for line, _ in _lines(stream, path):
            header = _check_header(line, path)
            return {**header, "meta": from_plain(header.get("meta", {}))}
    raise NotARecordError(f"{path} is empty; a record starts with a header line")


# Reading files.


def _compressed(path: Path) -> bool:
    return path.suffix == ".gz"


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RecordError(f"the record {path} cannot be opened: {error}") from error


def _lines(stream: BinaryIO, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line with the offset after it; skip an incomplete last line."""
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
    """Yield the lines in each complete gzip member with the offset after the member."""
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
                    return  # the last member is incomplete
        except zlib.error as error:
            if not rest.strip(b"\0") and not stream.read().strip(b"\0"):
                return  # zeros that a machine crash left at the end
            raise RecordError(
                f"{path} is damaged at byte {end}, in line {number + 1} or later: {error}"
            ) from error
        rest = member.unused_data
        end += used - len(rest)
        number += 1
        lines = b"".join(parts).splitlines(keepends=True)
        if len(lines) > 1 and not lines[-1].endswith(b"\n"):
            raise RecordError(f"{path} was compressed with an incomplete last line; decompress it")
        yield from ((line, end) for line in lines)


def _check_header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
        version = header["gem_record"]
    except (ValueError, KeyError, TypeError):
        raise NotARecordError(
            f"{path} is not a gem record: its first line is not a header with 'gem_record'"
        ) from None
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise RecordError(
            f"{path} has record version {version!r}, but this gem reads versions up to {VERSION}; "
            "use a newer gem"
        )
    return cast("dict[str, Any]", header)


def _episode_at(line: bytes, path: Path, number: int) -> Episode:
    try:
        return episode_from_json(json.loads(line))
    except RecordError as error:
        raise RecordError(f"{path}, line {number}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}, line {number} is damaged: {error}") from error
