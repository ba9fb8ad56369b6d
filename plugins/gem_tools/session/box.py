"""Box: the bubblewrap command of a program that lives for an episode.

The sandbox starts one process per call. A terminal session and an MCP server live longer, run other
programs and use the loopback interface of their box. Their box has its own processes, network and
temporary files, and ends with the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gem_tools.sandbox import seccomp
from gem_tools.sandbox.containment import contain
from gem_tools.sandbox.launch import bubblewrap

__all__ = [
    "USER",
    "box_command",
    "end_process",
    "memory_file",
    "python",
    "services_filter",
    "start_process",
]

USER = "user"
_MB = 1 << 20
# bubblewrap sets its second process to end with the first one a moment after its start. If gem is
# killed in between, that process would stay. So a keeper kills the process group when its input,
# a pipe from gem, ends.
_KEEPER = """
exec {life}<&0 </dev/null
{
    for fd in /proc/self/fd/*; do  # the pipes of the box must end with the box
        fd=${fd##*/}; [ $fd -le 2 ] || [ $fd = $life ] || eval "exec $fd<&-"
    done
    read -r -u $life; kill -9 0
} &
exec {life}<&-
"$@"
status=$?; kill -9 $!; exit $status
"""
_starters: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def box_command(
    program: Sequence[str],
    *,
    uid: int,
    capabilities: Sequence[str] = (),
    visible: Sequence[str] = (),
    folders: Mapping[str, str] | None = None,
    disk_mb: int = 64,
    files: Mapping[str, int] | None = None,
    seccomp_fd: int = -1,
) -> list[str]:
    """Return the command that runs a program in a box.

    `capabilities` are what the program keeps if gem runs as root. `visible` are further paths that
    it may read, `folders` maps paths in the box to folders of the machine that it may write, and
    `files` maps paths in the box to descriptors of their content. `disk_mb` limits the home folder,
    /tmp and /dev/shm, each. `uid` is the user inside, unless gem runs as root.
    """
    contain("full", True)  # raises ConfigError if bubblewrap does not work here
    command = [bubblewrap(), "--die-with-parent", "--new-session", "--unshare-ipc"]
    command += ["--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", "sandbox", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        for capability in capabilities:
            command += ["--cap-add", capability]
    else:
        command += ["--unshare-user", "--uid", str(uid), "--gid", str(uid)]
    command += ["--ro-bind", "/usr", "/usr", "--perms", "0755", "--dir", "/etc"]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):  # Debian's awk links to alternatives
        command += ["--ro-bind-try", path, path]
    for path, descriptor in (files or {}).items():
        command += ["--perms", "0644", "--ro-bind-data", str(descriptor), path]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    size = str(disk_mb * _MB)
    # Mount /tmp before the visible paths: an interpreter may live under /tmp.
    command += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp"]
    command += ["--perms", "0755", "--dir", "/home"]
    command += ["--perms", "0755", "--size", size, "--tmpfs", f"/home/{USER}"]
    for source in dict.fromkeys(p for p in visible if not f"{p}/".startswith("/usr/")):
        command += [*_parents(source), "--ro-bind", source, source]
    for path, folder in (folders or {}).items():
        command += [*_parents(path), "--bind", folder, path]
    command += ["--proc", "/proc", "--dev", "/dev"]
    command += ["--perms", "1777", "--size", size, "--tmpfs", "/dev/shm"]
    command += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", f"/home/{USER}"]
    if seccomp_fd >= 0:
        command += ["--seccomp", str(seccomp_fd)]
    return [*command, "--", *program]


def python() -> tuple[str, str]:
    """Return the interpreter for programs in a box, and the folder that it needs."""
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return executable, os.path.realpath(sys.base_prefix)


def memory_file(content: bytes) -> int:
    """Return a descriptor of a file in memory; bubblewrap reads and closes its own copy."""
    descriptor = os.memfd_create("gem-session", 0)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def services_filter() -> int:
    """Return a descriptor of the system call filter of sessions; -1 if there is none."""
    return memory_file(seccomp.SERVICES) if seccomp.SERVICES else -1


def start_process(command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start a box, with a keeper as its parent, on a thread that lives as long as gem does.

    A box dies with the thread that started it, and the engine's threads come and go. The process
    leads its own group; `end_process` ends it.
    """
    with _lock:
        pid = os.getpid()  # threads do not survive a fork
        if pid not in _starters:
            _starters.clear()
            _starters[pid] = ThreadPoolExecutor(1, thread_name_prefix="gem-session")
        starter = _starters[pid]

    keeper = ["setpriv", "--pdeathsig", "KILL", "bash", "-c", _KEEPER, "gem-keeper", *command]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(keeper, stdin=subprocess.PIPE, start_new_session=True, **settings)

    return starter.submit(start).result()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a box and its keeper, and wait for the end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _parents(path: str) -> list[str]:
    """Return options that create the parents of a path; bubblewrap would make them private."""
    options: list[str] = []
    for parent in reversed(Path(path).parents[:-1]):
        if str(parent) not in ("/tmp", "/home", f"/home/{USER}"):
            options += ["--perms", "0755", "--dir", str(parent)]
    return options
