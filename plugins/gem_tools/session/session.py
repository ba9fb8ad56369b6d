"""Session: a terminal whose processes, folder and variables persist between commands.

A session is a box with a persistent bash. Its files are in memory and vanish with the box, which
ends with this process, however that ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import subprocess
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.sandbox.uids import next_uid
from gem_tools.session.box import (
    USER,
    box_command,
    end_process,
    memory_file,
    python,
    services_filter,
    start_process,
)
from gem_tools.tool import ToolError, printable

__all__ = ["HOME", "Ran", "Seen", "Session", "SessionLost", "check_seconds"]

HOME = f"/home/{USER}"
SHOWN = 8000
"""The number of characters of output to show, half of them from the end."""
# bubblewrap's first process keeps the descriptors 0 to 2, and a command can open them if gem does
# not run as root. So they are /dev/null, and the program talks to gem on two others.
_START = (
    "import json, sys; sys.stdin = open(int(sys.argv[1])); sys.stdout = open(int(sys.argv[2]), 'w')"
    "; exec(json.loads(sys.stdin.readline()))"
)
_MB = 1 << 20
_SECONDS_TO_START = 60.0
_SECONDS_TO_ANSWER = 20.0
_FIRST_UID = 1_800_000_000
# The program must be able to read every file and to stop every process of the terminal's user.
_CAPABILITIES = (
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_KILL",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
)
_LOOK_ENV = {
    # A check ignores what the terminal's user configured for these programs.
    "PYTHONNOUSERSITE": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/nonexistent",
    "GIT_SHALLOW_FILE": "",
    # caches of the history and of the working tree, and programs that git would run
    "GIT_CONFIG_COUNT": "4",
    "GIT_CONFIG_KEY_0": "core.commitGraph",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "core.multiPackIndex",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "core.fsmonitor",
    "GIT_CONFIG_VALUE_2": "false",
    "GIT_CONFIG_KEY_3": "core.hooksPath",
    "GIT_CONFIG_VALUE_3": "/dev/null",
}


class SessionLost(ToolError):
    """Raised when the box of a session has ended or does not answer."""

    by_command = False
    """Whether a command stopped or killed the program in the box. It can only if gem does not run
    as root; otherwise gem or the machine is the cause."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    output: str
    status: int
    cwd: str
    end: str
    """Why it ended: "" by itself; `time` or `output` at a limit; `exit` if bash exited, `restart`
    if bash had to be killed: a new bash without the variables replaces it; `killed` if every
    process had to be killed for the new bash."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file in a session."""

    content: bytes | None
    """None if it is not a regular file of at most 4 MB."""
    mode: int
    link: bool
    real: str
    """The path after following links."""


class Session:
    """A terminal in a box of its own. One thread uses it at a time."""

    def __init__(self, *, memory_mb: int = 1024, disk_mb: int = 64, processes: int = 64) -> None:
        """Start the session; `memory_mb` limits a process, `disk_mb` the home folder and /tmp."""
        uid = 0
        if os.geteuid() == 0:
            uid = next_uid(_FIRST_UID)
        executable, prefix = python()
        environment = _environment(os.path.dirname(executable))
        limits = {
            "RLIMIT_AS": memory_mb * _MB,
            "RLIMIT_FSIZE": disk_mb * _MB,
            "RLIMIT_NPROC": processes,
            "RLIMIT_NOFILE": 256,
            "RLIMIT_CPU": 300,
            "RLIMIT_CORE": 0,
        }
        files = {path: memory_file(text.encode()) for path, text in _files(uid or 1000).items()}
        filter_fd = services_filter()
        jobs_end, self._jobs = os.pipe()
        self._answers, answers_end = os.pipe()
        passed = [*files.values(), jobs_end, answers_end, *([filter_fd] * (filter_fd >= 0))]
        try:
            command = box_command(
                [executable, "-s", "-S", "-B", "-c", _START, str(jobs_end), str(answers_end)],
                uid=1000,
                capabilities=_CAPABILITIES,
                visible=[prefix],
                disk_mb=disk_mb,
                files=files,
                seccomp_fd=filter_fd,
            )
            self._process = start_process(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                env={"PATH": environment["PATH"], "LANG": "C.UTF-8"},
            )
        except BaseException:
            os.close(self._jobs)
            os.close(self._answers)
            raise
        finally:
            for fd in passed:
                os.close(fd)
        self._received = b""
        # also called for a session that nobody closed
        self._end = weakref.finalize(self, _end, self._process, self._jobs, self._answers)
        os.set_blocking(self._jobs, False)
        deadline = time.monotonic() + _SECONDS_TO_START
        self._send(_program(), deadline)
        settings = {"uid": uid, "env": environment, "look_env": _LOOK_ENV, "limits": limits}
        self._send(settings, deadline)

    def write(self, files: Sequence[tuple[str, str, int]]) -> None:
        """Write files of the home folder, (path, text, mode); a path ending in / is a folder."""
        self._do({"do": "write", "files": [list(file) for file in files]}, _SECONDS_TO_START)

    def run(self, command: str, seconds: float = 10.0) -> Ran:
        """Type a command into the terminal and wait for the prompt, at most `seconds`."""
        job = {"do": "run", "command": command, "seconds": float(seconds)}
        result = self._do(job, seconds + _SECONDS_TO_ANSWER)
        output = result["output"].replace("\r\n", "\n")
        return Ran(printable(_shorten(output)), result["status"], result["cwd"], result["end"])

    def file(self, path: str) -> Seen | None:
        """Return a file, without a process that a command could have changed."""
        seen = self._look("file", path)
        if seen is None:
            return None
        data = None if seen["data"] is None else base64.b64decode(seen["data"])
        return Seen(data, seen["mode"], seen["link"], seen["real"])

    def tree(self, path: str) -> list[str]:
        """Return the relative paths of all files below a folder, sorted."""
        return [str(name) for name in self._look("tree", path)]

    def prints(self, command: str, seconds: float = 10.0) -> tuple[str, int]:
        """Run a command in a new shell; return its output and status (-1 at the time limit)."""
        seen = self._look("run", command, seconds)
        return seen["output"], seen["status"]

    def stop(self) -> None:
        """Kill every process of the terminal, so nothing changes the files any more."""
        self._do({"do": "stop"}, _SECONDS_TO_ANSWER)

    def close(self) -> None:
        """End the box and everything in it; a second call does nothing."""
        self._end()

    def _look(self, what: str, subject: str, seconds: float = 10.0) -> Any:
        job = {"do": "look", "what": what, "subject": subject, "seconds": seconds}
        return self._do(job, seconds + _SECONDS_TO_ANSWER)

    def _do(self, job: dict[str, Any], seconds: float) -> Any:
        if not self._end.alive:
            raise SessionLost("the session is closed")
        deadline = time.monotonic() + seconds
        try:
            self._send(job, deadline)
            answer = json.loads(self._line(deadline))
        except BaseException:  # also KeyboardInterrupt: the next job would get this job's answer
            self.close()
            raise
        if "error" in answer:
            raise ToolError(f"the terminal failed: {answer['error']}")
        return answer["value"]

    def _send(self, message: Any, deadline: float) -> None:
        data = json.dumps(message).encode() + b"\n"
        with selectors.DefaultSelector() as selector:
            selector.register(self._jobs, selectors.EVENT_WRITE)
            while data:
                self._wait(selector, deadline)
                try:
                    data = data[os.write(self._jobs, data) :]
                except OSError:
                    raise self._lost("the terminal's box has ended") from None

    def _line(self, deadline: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._received:
                self._wait(selector, deadline)
                part = os.read(self._answers, 1 << 16)
                if not part:
                    raise self._lost("the terminal's box has ended")
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _wait(self, selector: selectors.BaseSelector, deadline: float) -> None:
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise self._lost("the terminal does not answer")

    def _lost(self, problem: str) -> SessionLost:
        """End the box; return the error, which knows whose fault it is."""
        error = SessionLost(problem)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        status = self._process.poll()
        # bubblewrap returns 128 + N if signal N killed the program
        killed = status is not None and status > 128
        error.by_command = os.geteuid() != 0 and (killed or _is_stopped(self._process.pid))
        self.close()
        return error


def _end(process: subprocess.Popen[bytes], *descriptors: int) -> None:
    """End a box and close the pipes to its program."""
    end_process(process)
    for descriptor in descriptors:
        os.close(descriptor)


def _is_stopped(keeper: int) -> bool:
    """Whether the program in a box was sent SIGSTOP."""
    try:
        process = str(keeper)
        for position in (-1, 0, 0):  # bubblewrap, its first process in the box, the program
            children = Path(f"/proc/{process}/task/{process}/children")
            process = children.read_text(encoding="ascii").split()[position]
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _environment(python_folder: str) -> dict[str, str]:
    """Return the environment of the shell; nothing in it opens a pager or an editor."""
    return {
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{python_folder}",
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "EDITOR": "false",
        "HISTFILE": "/dev/null",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _files(uid: int) -> dict[str, str]:
    """Return the files below /etc that programs look users and hosts up in."""
    return {
        "/etc/passwd": f"root:x:0:0::/:/bin/false\n{USER}:x:{uid}:{uid}::{HOME}:/bin/bash\n",
        "/etc/group": f"root:x:0:\n{USER}:x:{uid}:\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n",
    }


def check_seconds(seconds: object) -> float:
    """Return a time limit, or raise `ConfigError`."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < float("inf"):  # type: ignore[operator]
        raise ConfigError(f"seconds must be a positive number; got {seconds!r}")
    return float(seconds)  # type: ignore[arg-type]


def _shorten(text: str) -> str:
    """Return the beginning and the end of a long text."""
    if len(text) <= SHOWN:
        return text
    note = f"(... {len(text) - SHOWN} characters left out ...)"
    return f"{text[: SHOWN // 2]}\n{note}\n{text[-SHOWN // 2 :]}"


@cache
def _program() -> str:
    return Path(__file__).with_name("program.py").read_text(encoding="utf-8")
