"""The program in the sandbox that unpacks a home folder, does one job in it, and packs it again.

gem never imports it: `shell.py` sends its text to the sandbox, which has only the standard library.
The last line of its output is the answer as JSON, including the output of the job.
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
"""The number of characters of output to show, half of them from the end."""
MOST = 4 << 20
"""The number of bytes of output after which a command is stopped."""


def main(home: bytes | None, job: dict[str, Any]) -> bytes:
    """Do a job and return the packed home folder."""
    os.umask(0o022)
    os.makedirs(HOME)
    if home is not None:
        with tarfile.open(fileobj=io.BytesIO(home)) as archive:
            options = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(HOME, **options)  # type: ignore[arg-type]
    answer = {"write": write, "run": run, "check": check}[job["do"]](job)
    packed = pack()
    sys.stdout.write(json.dumps(answer) + "\n")
    return packed


def write(job: dict[str, Any]) -> dict[str, Any]:
    """Write files, (path, text, mode) each; a path that ends in a slash is a folder."""
    for path, text, mode in job["files"]:
        target = os.path.join(HOME, path)
        os.makedirs(target if path.endswith("/") else os.path.dirname(target), exist_ok=True)
        if not path.endswith("/"):
            with open(target, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            os.chmod(target, mode)
    return run({**job, "command": job["setup"], "cwd": ""})


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a command with bash in the working directory of the previous one."""
    output, status, cwd = bash(job["command"], job["cwd"], job["seconds"])
    return {"output": output, "status": status, "cwd": cwd}


def check(job: dict[str, Any]) -> dict[str, Any]:
    """Return which tests pass."""
    return {"passed": [holds(test, job["seconds"]) for test in job["tests"]]}


def holds(test: list[Any], seconds: float) -> bool:
    """Whether a test (kind, path or command, expected) passes."""
    kind, subject, expected = test
    path = os.path.join(HOME, subject)
    try:
        if kind == "text":  # ignores trailing whitespace
            with open(path, encoding="utf-8") as file:
                return lines(file.read()) == lines(expected)
        if kind == "bytes":
            with open(path, "rb") as file:
                return bool(file.read() == expected.encode())
        if kind == "names":  # all files below a folder
            return sorted(tree(path)) == sorted(expected)
        if kind == "mode":
            return bool(stat.S_IMODE(os.stat(path).st_mode) == expected)
        if kind == "link":
            target = os.path.realpath(os.path.join(HOME, expected))
            return os.path.islink(path) and os.path.realpath(path) == target
        if kind == "prints":
            output, status, _ = bash(subject, "", seconds)
            return status == 0 and lines(output) == lines(expected)
    except (OSError, UnicodeDecodeError):
        return False
    raise ValueError(f"unknown kind of test: {kind}")


def tree(folder: str) -> list[str]:
    """Return the relative paths of all files below a folder."""
    paths = []
    for parent, _, names in os.walk(folder):
        paths += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return paths


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def bash(command: str, cwd: str, seconds: float) -> tuple[str, int, str]:
    """Run a command; return its output, its status (124 if stopped), and its last directory."""
    if "\0" in command:
        return "bash: a command has no NUL character in it", 2, cwd
    cwd_pipe, write_end = os.pipe()
    script = f'cd -- "$1" 2>/dev/null || cd; trap \'pwd -P >&{write_end}\' EXIT; eval "$2"'
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
        pass_fds=(write_end,),
        start_new_session=True,
    )
    os.close(write_end)
    assert process.stdout is not None
    written, ended = drain(process, process.stdout.fileno(), time.monotonic() + seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # end its background processes
    process.wait()
    last_cwd = ""
    if select.select([cwd_pipe], [], [], 0)[0]:
        last_cwd = os.read(cwd_pipe, 4096).decode("utf-8", "replace").strip()
    text = shorten(written.decode("utf-8", "backslashreplace"))
    if not ended:
        stopped = "wrote too much" if len(written) >= MOST else f"took over {seconds:g} s"
        return f"{text}\n(stopped: the command {stopped})".lstrip(), 124, cwd
    inside = last_cwd == HOME or last_cwd.startswith(HOME + "/")
    return text, process.returncode, os.path.relpath(last_cwd, HOME) if inside else ""


def drain(process: subprocess.Popen[bytes], pipe: int, deadline: float) -> tuple[bytes, bool]:
    """Return the output of a process and whether it ended by itself."""
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


def shorten(text: str) -> str:
    """Return the beginning and the end of a long text."""
    if len(text) <= SHOWN:
        return text
    note = f"(... {len(text) - SHOWN} characters left out ...)"
    return f"{text[: SHOWN // 2]}\n{note}\n{text[-SHOWN // 2 :]}"


def pack() -> bytes:
    """Return the home folder as an archive; equal files give equal bytes."""
    if not os.path.isdir(HOME):
        if os.path.lexists(HOME):
            os.remove(HOME)
        os.makedirs(HOME)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(os.listdir(HOME)):
            archive.add(os.path.join(HOME, name), arcname=name, filter=without_owner)
    shutil.rmtree(HOME, ignore_errors=True)
    return packed.getvalue()


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
