"""Relay: run an MCP server and pass its messages on, except those over a limit.

    python relay.py LIMIT COMMAND ARGUMENT...

The server inherits stdin and stderr. Its stdout passes through this process, one JSON message per
line. A response longer than LIMIT bytes is replaced by an error response; other messages of that
length are dropped. A process of its own does this work: a message of 100 MB costs the event loop of
the MCP connections nothing. The file imports no other module of gem and starts in milliseconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import IO

__all__ = ["error_response", "main", "over_limit", "response_id"]

_ENDS = 1_000
"""The number of bytes at each end of a message that may contain its id."""
_MEMBER = rb'\s*"(?:jsonrpc|id)"\s*:\s*(?:"[^"\\]*"|-?\d+)\s*'
_HEAD = re.compile(rb"\s*\{((?:" + _MEMBER + rb",)+)")
_TAIL = re.compile(rb"((?:," + _MEMBER + rb")+)\}\s*\Z")
_ID = re.compile(rb'"id"\s*:\s*("[^"\\]*"|-?\d+)')


def main() -> int:
    """Run the command; return its exit status."""
    limit = int(sys.argv[1])
    try:
        server = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 127
    assert server.stdout is not None
    try:
        _pass_on(server.stdout, sys.stdout.buffer, limit)
    except BrokenPipeError:  # gem has ended; the server reads the end of its stdin
        server.stdout.close()
    return server.wait()


def response_id(head: bytes, tail: bytes) -> bytes | None:
    """Return the id of a response as JSON, from the two ends of the message.

    The id is a member of the outermost object. Every known server writes it before or after the
    result, so it is next to an end of the message, with nothing but `jsonrpc` in between.
    """
    for members in (_HEAD.match(head), _TAIL.search(tail)):
        found = members and _ID.search(members[1])
        if found:
            return found[1]
    return None


def error_response(id: bytes, problem: str) -> bytes:
    """Return a message that replaces the response to the request `id`."""
    error = json.dumps({"code": -32000, "message": problem})
    return b'{"jsonrpc": "2.0", "id": %s, "error": %s}' % (id, error.encode())


def over_limit(limit: int) -> str:
    """Return the text of the error for a response over the limit."""
    return f"the result is larger than {limit:,} bytes, the limit for a result; request less"


def _pass_on(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    while line := source.readline(limit):
        if len(line) == limit and not line.endswith(b"\n"):
            head, tail = line[:_ENDS], line[-_ENDS:]
            while not tail.endswith(b"\n") and (more := source.readline(limit)):
                tail = (tail + more)[-_ENDS:]
            id = response_id(head, tail)
            if id is None:
                continue
            line = error_response(id, over_limit(limit)) + b"\n"
        target.write(line)
        target.flush()


if __name__ == "__main__":
    sys.exit(main())
