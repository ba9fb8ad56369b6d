"""Mock of pyarrow's plasma store, which pyarrow 12 removed. Tests only.

An object is a file in shared memory. If pyarrow has plasma, importing this module changes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow


class ObjectID:
    """The name of an object."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def binary(self) -> bytes:
        """Return the name."""
        return self._name


class PlasmaClient:
    """A client of a store."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def put(self, data: bytes) -> ObjectID:
        """Store an object under a new name."""
        name = uuid.uuid4().hex
        (self._folder / name).write_bytes(data)
        return ObjectID(name.encode())

    def get(self, object_id: ObjectID) -> bytes:
        """Return an object."""
        return (self._folder / object_id.binary().decode()).read_bytes()

    def delete(self, object_ids: Iterable[ObjectID]) -> None:
        """Remove objects from the store."""
        for object_id in object_ids:
            (self._folder / object_id.binary().decode()).unlink()


@contextmanager
def start_plasma_store(plasma_store_memory: int) -> Iterator[tuple[str, None]]:
    """Start a store; yields its path and, instead of its process, None."""
    shared_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="plasma", dir=shared_memory) as folder:
        yield folder, None


def connect(path: str) -> PlasmaClient:
    """Return a client of the store at a path."""
    return PlasmaClient(path)


if importlib.util.find_spec("pyarrow.plasma") is None:
    pyarrow.plasma = sys.modules["pyarrow.plasma"] = sys.modules[__name__]
