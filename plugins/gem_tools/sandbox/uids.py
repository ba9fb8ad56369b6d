"""User ids: unused ones for the programs of root, which no other process of gem uses.

Each process claims a block of numbers by binding an abstract socket, which the kernel releases when
the process ends. A forked process claims its own block. Other network namespaces, such as those of
containers, have other sockets, so the search starts at a random block.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import socket

__all__ = ["next_uid"]

_BLOCKS, _BLOCK_SIZE = 1_000, 100_000
_claimed: dict[int, tuple[int, dict[int, itertools.count[int]]]] = {}
"""The first number of the block of each process, and a counter for each `first`."""


def next_uid(first: int) -> int:
    """Return a user id of 100,000,000 after `first`; a process repeats its own after 100,000."""
    pid = os.getpid()
    if pid not in _claimed:
        _claimed.setdefault(pid, (_claim() * _BLOCK_SIZE, {}))
    begin, counters = _claimed[pid]
    return first + begin + next(counters.setdefault(first, itertools.count())) % _BLOCK_SIZE


def _claim() -> int:
    """Return a block that no other process has claimed."""
    start = secrets.randbelow(_BLOCKS)
    for number in range(start, start + _BLOCKS):
        block = number % _BLOCKS
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0gem-uids-{block}")
        except OSError as error:
            claim.close()
            if error.errno == errno.EADDRINUSE:
                continue
            return block  # this system has no abstract sockets
        claim.detach()  # open until the process ends
        return block
    return start
