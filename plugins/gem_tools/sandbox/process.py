"""Box: a sandbox process that is started ahead of time and runs one program."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from gem_tools.sandbox import seccomp
from gem_tools.sandbox.cgroup import join, memory_groups
from gem_tools.sandbox.homes import make_home, remove_tree
from gem_tools.sandbox.launch import Plan, SandboxLimits
from gem_tools.sandbox.uids import next_uid
from gem_tools.tool import ToolError, printable

__all__ = ["Box", "Outcome"]

_MOST_OUTPUT = 64 << 20
"""The number of bytes of output after which a program is stopped."""
_MOST_STATE = 64 << 20
_MOST_LOST, _MOST_LOST_NAMES = 16 << 10, 100
"""Limits of the list of lost names: its bytes, and its names."""
_SECONDS_TO_DIE = 10.0
_SECONDS_TO_EXIT = 0.02
_FIRST_UID = 1_900_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call."""

    end: Literal["ok", "error", "time", "output", "killed"]
    """How the program ended.

    `error`: with a non-zero status; `time`: over the wall time; `output`: with too much output;
    `killed`: by a signal, for example at the CPU limit.
    """
    stdout: str
    stderr: str
    status: int
    seconds: float
    cut: bool = False
    """Whether part of the output was dropped."""
    state: bytes | None = None
    """The names for the next call, if they were requested."""
    lost: tuple[str, ...] = ()
    """The names that cannot be kept."""


class Box:
    """A process that runs one program; ending it ends everything the program started."""

    closes_stdin = True
    """Whether a program finds the end of its input after the job."""
    seconds_to_start = 20.0

    def __init__(self, plan: Plan) -> None:
        self._home = "" if plan.boxed else make_home()
        self._report = self._info = -1
        self._first_pid = 0
        self._first = -1
        """The pidfd of the first process in bubblewrap's namespace, which dies with it."""
        self._ended = False
        self._group: Path | None = None
        """The memory cgroup of the process."""
        try:
            self._process = self._launch(plan)
        except BaseException:
            self._close_pipes()
            self._release()
            raise

    def _launch(self, plan: Plan) -> subprocess.Popen[bytes]:
        uid = 0
        if "uid" in plan.parts:
            uid = next_uid(_FIRST_UID)
            if self._home:
                os.chown(self._home, uid, uid)
        self._report, report_fd = os.pipe()
        self._info, info_fd = os.pipe() if plan.boxed else (-1, -1)
        filter_fd = _in_memory(seccomp.NAMESPACED) if plan.boxed and seccomp.NAMESPACED else -1
        passed = [fd for fd in (report_fd, info_fd, filter_fd) if fd >= 0]
        home = self._home or "/tmp"
        settings = repr(plan.settings(home, report_fd, uid))
        command = plan.command(settings, filter_fd, info_fd)
        try:
            if "cgroup" in plan.parts and (groups := memory_groups()) is not None:
                self._group = groups.take(plan.memory)
                command = join(self._group, command)
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=plan.environment(home),
                cwd=self._home or "/",
                pass_fds=passed,
                start_new_session=True,
                bufsize=0,
            )
        finally:
            for fd in passed:
                os.close(fd)

    def serve(
        self, code: str, state: bytes | None, keep: bool, echo: bool, limits: SandboxLimits
    ) -> Outcome:
        """Wait until the worker is ready, send it the program, and watch it until it ends."""
        self._wait_until_ready()
        source, names = code.encode("utf-8", "surrogatepass"), state or b""
        cpu = math.ceil(limits.cpu_seconds or limits.seconds)
        job = struct.pack("<IIII", len(source), len(names), cpu, keep + 2 * echo) + source + names
        return self._watch(job, limits, keep)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process, if it still runs, and remove its home folder."""
        if self._ended:
            return
        self._ended = True
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._close_pipes()
        self._wait_for_exit()
        self._release()

    def kill(self) -> None:
        """Kill the process group; with bubblewrap, everything in the namespace dies."""
        if self._first >= 0 and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def parts(self) -> tuple[str, ...]:
        """Return the filters the worker reports; for probes, at most once and before `serve`."""
        return tuple(p for p in self._wait_until_ready().decode().strip().split(",") if p)

    def _wait_until_ready(self) -> bytes:
        """Return the worker's first line, which lists the filters in force."""
        line = b""
        deadline = time.monotonic() + self.seconds_to_start
        with selectors.DefaultSelector() as selector:
            selector.register(self._report, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                # A container that does not start never opens its end of the report.
                while not (ready := selector.select(0.1)):
                    if time.monotonic() > deadline or self._process.poll() is not None:
                        break
                part = os.read(self._report, 256) if ready else b""
                if not part:
                    self.kill()
                    stderr = _stream(self._process.stderr).read() or b""
                    reason = stderr[-2000:].decode("utf-8", "replace").strip() or "no output"
                    raise ToolError(
                        f"a sandbox worker exited or hung before it was ready: {reason}"
                    )
                line += part
        if self._info >= 0 and sys.platform == "linux":
            child = re.search(rb'"child-pid": *(\d+)', os.read(self._info, 4096))
            if child:
                self._first_pid = int(child[1])
                self._first = os.pidfd_open(self._first_pid)
        return line

    def _watch(self, job: bytes, limits: SandboxLimits, keep: bool) -> Outcome:
        stdin, stdout, stderr = (
            _stream(s) for s in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        output_size = int(limits.output_kb * 1024)
        buffers: dict[int, bytearray] = {
            stdout.fileno(): bytearray(),
            stderr.fileno(): bytearray(),
            self._report: bytearray(),
        }
        report_size = _MOST_LOST + (_MOST_STATE if keep else 0)
        sizes = {fd: report_size if fd == self._report else output_size for fd in buffers}
        written = dict.fromkeys(buffers, 0)
        job_fd = stdin.fileno()
        exit_fd = _exit_descriptor(self._process)
        begin = time.monotonic()
        deadline = begin + limits.seconds
        stopped: Literal["", "time", "output"] = ""
        sent = 0
        with selectors.DefaultSelector() as selector:
            for fd in buffers:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            os.set_blocking(job_fd, False)
            selector.register(job_fd, selectors.EVENT_WRITE)
            if exit_fd >= 0:
                selector.register(exit_fd, selectors.EVENT_READ)
            exited, report = False, None
            while not exited:
                left = deadline - time.monotonic()
                if left <= 0:
                    stopped = "time"
                    break
                for key, _ in selector.select(left if exit_fd >= 0 else min(left, 0.02)):
                    fd = key.fd
                    if fd == exit_fd:
                        exited = True
                    elif fd == job_fd:
                        try:
                            sent += os.write(fd, job[sent : sent + 65536])
                        except BlockingIOError:
                            continue
                        except OSError:  # the worker ended before it read the whole job
                            sent = len(job)
                        if sent >= len(job):
                            selector.unregister(fd)
                            if self.closes_stdin:
                                stdin.close()
                    elif not _drain(fd, buffers[fd], written, sizes[fd]):
                        selector.unregister(fd)
                report = _parse_report(buffers[self._report])
                if report is not None:
                    break
                if exit_fd < 0 and self._process.poll() is not None:
                    exited = True
                if max(written.values()) > _MOST_OUTPUT:
                    stopped = "output"
                    break
        seconds = time.monotonic() - begin
        if exit_fd >= 0:
            os.close(exit_fd)

        def read_rest() -> None:
            for fd in buffers:
                while _readable(fd) and written[fd] <= _MOST_OUTPUT:
                    if not _drain(fd, buffers[fd], written, sizes[fd]):
                        break

        alone = report is not None and self._is_alone()
        self.kill()
        if not alone:
            self._wait_until_gone(read_rest)
        read_rest()  # all writers are dead
        # A program that was killed or called os._exit sends no report; use its exit status.
        status, lost, names = report if report is not None else (self._process.wait(), (), None)
        end: Literal["ok", "error", "time", "output", "killed"]
        if stopped:
            end = stopped
        elif status < 0 or (status > 128 and report is None):
            end = "killed"
        else:
            end = "ok" if status == 0 else "error"
        out, err = buffers[stdout.fileno()], buffers[stderr.fileno()]
        cut = written[stdout.fileno()] > len(out) or written[stderr.fileno()] > len(err)
        if not keep or end != "ok":
            names, lost = None, ()
        return Outcome(end, _text(out), _text(err), status, seconds, cut, names, lost)

    def _is_alone(self) -> bool:
        """Whether only bubblewrap's first process is left in its namespace.

        There is then no need to wait for the end of the namespace, which takes longer than most
        programs. Every orphan in the namespace is a child of the first process.
        """
        deadline = time.monotonic() + _SECONDS_TO_EXIT
        pid = self._first_pid
        while pid:
            try:
                with open(f"/proc/{pid}/task/{pid}/children", "rb") as children:
                    if not children.read():
                        return True
            except ProcessLookupError:
                return True
            except FileNotFoundError:  # the process is gone, or the kernel has no such file
                return not os.path.exists(f"/proc/{pid}")
            if time.monotonic() > deadline:
                break
            time.sleep(0.0002)
        return False

    def _wait_until_gone(self, read_rest: Callable[[], None]) -> None:
        """Wait until a killed worker is dead, which takes a moment.

        `read_rest` reads output; a container engine does not end before all of it is read.
        """
        if self._first < 0:
            self._process.wait()
        elif not _readable(self._first, _SECONDS_TO_DIE):
            raise ToolError(f"a sandbox did not die within {_SECONDS_TO_DIE:g} s of being killed")

    def _wait_for_exit(self) -> None:
        self._process.wait()

    def _close_pipes(self) -> None:
        for fd in (self._report, self._info, self._first):
            if fd >= 0:
                os.close(fd)
        self._report = self._info = self._first = -1

    def _release(self) -> None:
        if self._group is not None and (groups := memory_groups()) is not None:
            groups.give(self._group)
        if self._home:
            remove_tree(self._home)


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("gem-seccomp", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _exit_descriptor(process: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when the process exits; -1 if unsupported."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(process.pid)
    return -1


def _drain(fd: int, buffer: bytearray, written: dict[int, int], size: int) -> bool:
    """Read available bytes and keep the first `size`; return False at the end of the stream."""
    try:
        part = os.read(fd, 1 << 18)
    except BlockingIOError:
        return True
    if not part:
        return False
    written[fd] += len(part)
    if len(buffer) < size:
        buffer += part[: size - len(buffer)]
    return True


def _readable(fd: int, seconds: float = 0.0) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _stream(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _text(raw: bytearray) -> str:
    """Decode bytes to text for a model; escape invalid UTF-8 and control characters."""
    text = printable(raw.decode("utf-8", "backslashreplace"))
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _parse_report(report: bytearray) -> tuple[int, tuple[str, ...], bytes] | None:
    """Return (status, lost names, pickled names) from a worker's report; None if incomplete.

    The program may write to the report too, so nothing in it is trusted.
    """
    if len(report) < 16 or report[:4] != b"done":
        return None
    status, lost_size, state_size = struct.unpack_from("<III", report, 4)
    if lost_size > _MOST_LOST - 16:  # the worker writes less
        return status, (), b""
    end_of_lost = 16 + lost_size
    if len(report) < end_of_lost + state_size:
        return None
    lost = printable(bytes(report[16:end_of_lost]).decode("utf-8", "replace"))
    names = lost.replace("\n", " ").split(",")[:_MOST_LOST_NAMES] if lost else ()
    state = bytes(report[end_of_lost : end_of_lost + state_size])
    return status, tuple(names), state
