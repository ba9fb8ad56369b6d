"""Box: one process of a sandbox. It is started ahead of time, given one program, watched, and ended with all it started."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, Literal

from gem_tools.sandbox import seccomp
from gem_tools.sandbox.launch import Plan, SandboxLimits
from gem_tools.tool import ToolError

__all__ = ["Box", "Outcome"]

_MOST_OUTPUT = 64 << 20
"""A program that writes more than this is stopped, whatever part of it is kept."""
_MOST_STATE = 64 << 20
_SECONDS_TO_START = 20.0
_SECONDS_TO_DIE = 10.0
_SECONDS_TO_EXIT = 0.02
_FIRST_UID = 1_900_000_000
_uids = itertools.count(os.getpid() % 10_000 * 10_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call did."""

    end: Literal["ok", "error", "time", "output", "killed"]
    """`error`: a status other than 0; `time`: the wall time; `output`: too much of it; `killed`: a signal, such as that of the
    processor limit."""
    stdout: str
    stderr: str
    status: int
    seconds: float
    cut: bool = False
    """Whether output was left out."""
    state: bytes | None = None
    """The names for the next call, where they were asked for."""
    lost: tuple[str, ...] = ()
    """Names that cannot be kept."""


class Box:
    """One process: started, given one program, ended with everything it started."""

    def __init__(self, plan: Plan) -> None:
        self._home = "" if plan.boxed else tempfile.mkdtemp(prefix="gem-sandbox-")
        home = self._home or "/tmp"
        uid = 0
        if "uid" in plan.parts:
            uid = _FIRST_UID + next(_uids) % 100_000_000
            if self._home:
                os.chown(self._home, uid, uid)
        self._report, theirs = os.pipe()
        self._info, info_fd = os.pipe() if plan.boxed else (-1, -1)
        self._first_pid = 0
        self._first = -1
        """A handle on the first process of bubblewrap's namespace: nothing in there outlives it."""
        filter_fd = _in_memory(seccomp.NAMESPACED) if plan.boxed and seccomp.NAMESPACED else -1
        passed = [fd for fd in (theirs, info_fd, filter_fd) if fd >= 0]
        try:
            self._process = subprocess.Popen(
                plan.command(repr(plan.asked(home, theirs, uid)), filter_fd, info_fd),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=plan.environment(home),
                cwd=self._home or "/",
                pass_fds=passed,
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self._close_pipes()
            self._remove_home()
            raise
        finally:
            for fd in passed:
                os.close(fd)
        self._ended = False

    def serve(
        self, code: str, state: bytes | None, keep: bool, echo: bool, limits: SandboxLimits
    ) -> Outcome:
        """Waits until the worker is ready, hands it the program, and watches it."""
        self._wait_until_ready()
        source, names = code.encode("utf-8", "surrogatepass"), state or b""
        cpu = math.ceil(limits.cpu_seconds or limits.seconds)
        job = struct.pack("<IIII", len(source), len(names), cpu, keep + 2 * echo) + source + names
        return self._watch(job, limits, keep)

    def end(self) -> None:
        """Kills what is left of it and removes its home."""
        if self._ended:
            return
        self._ended = True
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._close_pipes()
        self._process.wait()
        self._remove_home()

    def kill(self) -> None:
        """Kills it and its process group; in bubblewrap, everything inside dies with it."""
        if self._first >= 0 and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def parts(self) -> tuple[str, ...]:
        """What the worker says is in force. For probes: ask once, before `serve`."""
        return tuple(p for p in self._wait_until_ready().decode().strip().split(",") if p)

    def _wait_until_ready(self) -> bytes:
        said = b""
        with selectors.DefaultSelector() as chosen:
            chosen.register(self._report, selectors.EVENT_READ)
            deadline = time.monotonic() + _SECONDS_TO_START
            while not said.endswith(b"\n"):
                part = (
                    os.read(self._report, 256)
                    if chosen.select(max(0.0, deadline - time.monotonic()))
                    else b""
                )
                if not part:
                    self.kill()
                    why = (
                        _stream(self._process.stderr)
                        .read()[-2000:]
                        .decode("utf-8", "replace")
                        .strip()
                    )
                    raise ToolError(
                        f"a sandbox worker ended, or hung, before it was ready: {why or 'it said nothing'}"
                    )
                said += part
        if self._info >= 0 and sys.platform == "linux":
            told = re.search(rb'"child-pid": *(\d+)', os.read(self._info, 4096))
            if told:
                self._first_pid = int(told[1])
                self._first = os.pidfd_open(self._first_pid)
        return said

    def _watch(self, job: bytes, limits: SandboxLimits, keep: bool) -> Outcome:
        stdin, stdout, stderr = (
            _stream(s) for s in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        most = int(limits.output_kb * 1024)
        kept: dict[int, bytearray] = {
            stdout.fileno(): bytearray(),
            stderr.fileno(): bytearray(),
            self._report: bytearray(),
        }
        written = dict.fromkeys(kept, 0)
        inlet = stdin.fileno()
        ended = _exit_descriptor(self._process)
        began = time.monotonic()
        deadline = began + limits.seconds
        stopped: Literal["", "time", "output"] = ""
        sent = 0
        with selectors.DefaultSelector() as chosen:
            for fd in kept:
                os.set_blocking(fd, False)
                chosen.register(fd, selectors.EVENT_READ)
            os.set_blocking(inlet, False)
            chosen.register(inlet, selectors.EVENT_WRITE)
            if ended >= 0:
                chosen.register(ended, selectors.EVENT_READ)
            exited, done = False, None
            while not exited:
                left = deadline - time.monotonic()
                if left <= 0:
                    stopped = "time"
                    break
                for key, _ in chosen.select(left if ended >= 0 else min(left, 0.02)):
                    fd = key.fd
                    if fd == ended:
                        exited = True
                    elif fd == inlet:
                        try:
                            sent += os.write(fd, job[sent : sent + 65536])
                        except BlockingIOError:
                            continue
                        except OSError:  # it ended without reading all of its job
                            sent = len(job)
                        if sent >= len(job):
                            chosen.unregister(fd)
                            stdin.close()
                    elif not _drain(
                        fd, kept[fd], written, _MOST_STATE if fd == self._report else most
                    ):
                        chosen.unregister(fd)
                done = _done(kept[self._report])
                if done is not None:
                    break
                if ended < 0 and self._process.poll() is not None:
                    exited = True
                if max(written.values()) > _MOST_OUTPUT:
                    stopped = "output"
                    break
        seconds = time.monotonic() - began
        if ended >= 0:
            os.close(ended)
        alone = done is not None and self._left_alone()
        self.kill()
        if not alone:
            self._wait_until_gone()
        for fd in kept:  # what was written before the end; those who could still write are dead
            while (
                _drain(fd, kept[fd], written, _MOST_STATE if fd == self._report else most)
                and written[fd] <= _MOST_OUTPUT
            ):
                if not _readable(fd):
                    break
        # A program that was ended from outside, or by itself, has made no report; its parent knows how it ended.
        status, lost, names = done if done is not None else (self._process.wait(), (), None)
        end: Literal["ok", "error", "time", "output", "killed"]
        if stopped:
            end = stopped
        elif status < 0 or (status > 128 and done is None):
            end = "killed"
        else:
            end = "ok" if status == 0 else "error"
        out, err = kept[stdout.fileno()], kept[stderr.fileno()]
        cut = written[stdout.fileno()] > len(out) or written[stderr.fileno()] > len(err)
        return Outcome(
            end,
            _text(out),
            _text(err),
            status,
            seconds,
            cut,
            names if keep and end == "ok" else None,
            lost,
        )

    def _left_alone(self) -> bool:
        """Whether nobody but bubblewrap's first process is left in its namespace, so that there is nothing to wait for: what
        the kernel then still clears away takes longer than most programs. Every orphan in there is a child of the first."""
        deadline = time.monotonic() + _SECONDS_TO_EXIT
        while self._first_pid:
            try:
                with open(
                    f"/proc/{self._first_pid}/task/{self._first_pid}/children", "rb"
                ) as children:
                    if not children.read():
                        return True
            except ProcessLookupError:
                return True
            except FileNotFoundError:  # it is gone, or this kernel does not tell
                return not os.path.exists(f"/proc/{self._first_pid}")
            if time.monotonic() > deadline:
                break
            time.sleep(0.0002)
        return False

    def _wait_until_gone(self) -> None:
        """Until nothing of a killed worker runs: a process is dead a moment after it was killed, not at once."""
        if self._first < 0:
            self._process.wait()
        elif not _readable(self._first, _SECONDS_TO_DIE):
            raise ToolError(f"a sandbox did not die within {_SECONDS_TO_DIE:g} s of being killed")

    def _close_pipes(self) -> None:
        for fd in (self._report, self._info, self._first):
            if fd >= 0:
                os.close(fd)
        self._report = self._info = self._first = -1

    def _remove_home(self) -> None:
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("gem-seccomp", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _exit_descriptor(process: subprocess.Popen[bytes]) -> int:
    """Becomes readable when the process ends; -1 where there is no such thing and it has to be asked."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return -1


def _drain(fd: int, kept: bytearray, written: dict[int, int], most: int) -> bool:
    """Reads what is there and keeps the beginning; False at the end of the stream."""
    try:
        part = os.read(fd, 1 << 18)
    except BlockingIOError:
        return True
    if not part:
        return False
    written[fd] += len(part)
    if len(kept) < most:
        kept += part[: most - len(kept)]
    return True


def _readable(fd: int, seconds: float = 0.0) -> bool:
    with selectors.DefaultSelector() as chosen:
        chosen.register(fd, selectors.EVENT_READ)
        return bool(chosen.select(seconds))


def _stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


_CONTROL = {c: f"\\x{c:02x}" for c in (*range(9), 11, 12, *range(14, 32), 127)}


def _text(raw: bytearray) -> str:
    """Bytes as text a model can be shown: what is no UTF-8, or no printing character, is written as an escape."""
    text = raw.decode("utf-8", "backslashreplace").translate(_CONTROL)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _done(report: bytearray) -> tuple[int, tuple[str, ...], bytes] | None:
    """(status, names lost, names kept) once a worker's report is complete."""
    if len(report) < 16 or report[:4] != b"done":
        return None
    status, lost, names = struct.unpack_from("<III", report, 4)
    if len(report) < 16 + lost + names:
        return None
    said = bytes(report[16 : 16 + lost]).decode("utf-8", "replace")
    return (
        status,
        tuple(said.split(",")) if said else (),
        bytes(report[16 + lost : 16 + lost + names]),
    )
