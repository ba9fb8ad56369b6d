"""Checks: the tests of a terminal task, evaluated by gem after the last command.

| kind     | passes if                                                                  |
|----------|----------------------------------------------------------------------------|
| `text`   | the file has this text; trailing white space does not count                |
| `bytes`  | the file has exactly this text                                             |
| `json`   | the file is JSON with this value; 1, 1.0 and true are different values     |
| `names`  | these are all files below the folder                                       |
| `absent` | there is no such file                                                      |
| `mode`   | the file has this mode                                                     |
| `link`   | it is a symbolic link that leads to this path                              |
| `prints` | the command succeeds and prints this                                       |
| `serves` | `http://127.0.0.1:` + the text answers with this body; None: nobody answers |

The box only returns what it sees; expected values never enter it. Tests of services run first. Then
every process of the terminal is killed, so no process can change a file during the other tests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gem_envs.terminal.task import Test
from gem_tools.session.session import HOME, Session

__all__ = ["passed"]

_FETCH = (
    "python3 -I -c 'import sys, urllib.request as u; "
    'sys.stdout.write(u.urlopen("http://127.0.0.1:{}", timeout=3).read(100000).decode())\''
)


def passed(tests: Sequence[Test], session: Session, seconds: float) -> list[bool]:
    """Return which tests pass, and end the processes of the session."""
    services = {test: _serves(test, session, seconds) for test in tests if test[0] == "serves"}
    session.stop()
    return [
        services[test] if test[0] == "serves" else _holds(test, session, seconds) for test in tests
    ]


def _serves(test: Test, session: Session, seconds: float) -> bool:
    _, address, expected = test
    output, status = session.prints(_FETCH.format(address), seconds)
    if expected is None:
        return "Connection refused" in output
    return status == 0 and _lines(output) == _lines(expected)


def _holds(test: Test, session: Session, seconds: float) -> bool:
    kind, subject, expected = test
    if kind == "names":
        return session.tree(subject) == sorted(expected)
    if kind == "prints":
        output, status = session.prints(subject, seconds)
        session.stop()  # the command may run a program of the model, which may leave a daemon
        return status == 0 and _lines(output) == _lines(expected)
    seen = session.file(subject)
    if kind == "absent" or seen is None:
        return kind == "absent" and seen is None
    if kind == "mode":
        return bool(seen.mode == expected)
    if kind == "link":
        return seen.link and seen.real == f"{HOME}/{expected}"
    content = (seen.content or b"").decode("utf-8", "replace")
    if kind == "text":
        return seen.content is not None and _lines(content) == _lines(expected)
    if kind == "bytes":
        return bool(seen.content is not None and content == expected)
    if kind == "json":
        try:
            return _canonical(content) == _canonical(expected)
        except (ValueError, RecursionError):  # a file may be nested a million times
            return False
    raise ValueError(f"unknown kind of test: {kind}")


def _canonical(text: str) -> str:
    """Return JSON in one form. Python's `==` would take 1, 1.0 and true for equal."""
    return json.dumps(json.loads(text), sort_keys=True)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
