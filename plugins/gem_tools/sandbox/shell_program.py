"""Shell program: what runs inside the sandbox for one command: unpacks a home, does one job in it, packs it again.

Never imported by gem: `shell.py` hands its text to the sandbox, where only the standard library is. Its last line of output is
the answer, as JSON; what the job printed is inside it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from typing import Any

__all__ = ["HOME", "MOST", "SHOWN", "main"]

HOME = "/tmp/home"
SHOWN = 8000
"""Characters of the output that are shown, half of them from its end."""
MOST = 4 << 20
"""A command that writes more bytes than this is stopped."""


def main(home: bytes | None, job: dict[str, Any]) -> bytes:
    """Does a job of one kind; the home as it is left."""
    os.umask(0o022)
    os.makedirs(HOME)
    if home is not None:
        with tarfile.open(fileobj=io.BytesIO(home)) as archive:
            kept = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(HOME, **kept)  # type: ignore[arg-type]
    answer = {"write": write, "run": run, "check": check}[job["do"]](job)
    packed = pack()
    sys.stdout.write(json.dumps(answer) + "\n")
    return packed


def write(job: dict[str, Any]) -> dict[str, Any]:
    """Puts files there: (path, text, mode); a path that ends in a slash is a folder."""
    for path, text, mode in job["files"]:
        place = os.path.join(HOME, path)
        os.makedirs(place if path.endswith("/") else os.path.dirname(place), exist_ok=True)
        if not path.endswith("/"):
            with open(place, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            os.chmod(place, mode)
    return run({**job, "command": job["setup"], "cwd": ""})


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a command with bash, where the last one left off."""
    output, status, cwd = bash(job["command"], job["cwd"], job["seconds"])
    return {"output": output, "status": status, "cwd": cwd}


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Which tests hold."""
    return {"passed": [holds(test, job["seconds"]) for test in job["tests"]]}


def holds(test: list[Any], seconds: float) -> bool:
    """Whether one test holds of what is there now."""
    kind, what, expected = test
    place = os.path.join(HOME, what)
    try:
        if kind == "text":  # blanks at the end of lines and of the file do not count
            with open(place, encoding="utf-8") as file:
                return lines(file.read()) == lines(expected)
        if kind == "bytes":
            with open(place, "rb") as file:
                return bool(file.read() == expected.encode())
        if kind == "names":  # what a folder holds, folders below it included
            return sorted(tree(place)) == sorted(expected)
        if kind == "mode":
            return bool(stat.S_IMODE(os.stat(place).st_mode) == expected)
        if kind == "link":
            return os.path.islink(place) and os.path.realpath(place) == os.path.realpath(
                os.path.join(HOME, expected)
            )
        if kind == "prints":
            output, status, _ = bash(what, "", seconds)
            return status == 0 and lines(output) == lines(expected)
    except (OSError, UnicodeDecodeError):
        return False
    raise ValueError(f"no such test: {kind}")


def tree(folder: str) -> list[str]:
    """The files below a folder, as paths from it."""
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return found


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def bash(command: str, cwd: str, seconds: float) -> tuple[str, int, str]:
    """What a command printed, its status (124 where it took too long), and the folder it ended in."""
    if "\0" in command:
        return "bash: a command has no NUL character in it", 2, cwd
    told, tell = os.pipe()
    script = f'cd -- "$1" 2>/dev/null || cd; trap \'pwd -P >&{tell}\' EXIT; eval "$2"'
    environment = {
        "PATH": f"/usr/bin:/bin:{os.path.dirname(sys.executable)}",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", os.path.join(HOME, cwd), command.encode("utf-8", "replace")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=HOME,
        env=environment,
        pass_fds=(tell,),
        start_new_session=True,
    )
    os.close(tell)
    assert process.stdout is not None
    written, ended = drained(process, process.stdout.fileno(), time.monotonic() + seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left in the background ends with it
    process.wait()
    left = (
        os.read(told, 4096).decode("utf-8", "replace").strip()
        if select.select([told], [], [], 0)[0]
        else ""
    )
    text = shown(written.decode("utf-8", "backslashreplace"))
    if not ended:
        stopped = "wrote too much" if len(written) >= MOST else f"took over {seconds:g} s"
        return f"{text}\n(stopped: the command {stopped})".lstrip(), 124, cwd
    inside = left == HOME or left.startswith(HOME + "/")
    return text, process.returncode, os.path.relpath(left, HOME) if inside else ""


def drained(process: subprocess.Popen[bytes], pipe: int, deadline: float) -> tuple[bytes, bool]:
    """What a process writes until it ends, and whether it did by itself."""
    os.set_blocking(pipe, False)
    written = b""
    while True:
        over = process.poll() is not None
        ready = select.select([pipe], [], [], 0 if over else 0.005)[0]
        part = os.read(pipe, 1 << 16) if ready else b""
        written += part
        if over and not part:
            return written, True
        if len(written) >= MOST or (not over and time.monotonic() > deadline):
            return written, False


def shown(text: str) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= SHOWN:
        return text
    return f"{text[: SHOWN // 2]}\n(... {len(text) - SHOWN} characters left out ...)\n{text[-SHOWN // 2 :]}"


def pack() -> bytes:
    """The home as an archive, the same bytes for the same files."""
    if not os.path.isdir(HOME):
        if os.path.lexists(HOME):
            os.remove(HOME)
        os.makedirs(HOME)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in sorted(os.listdir(HOME)):
            archive.add(os.path.join(HOME, name), arcname=name, filter=nobody)
    shutil.rmtree(HOME, ignore_errors=True)
    return made.getvalue()


def nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
