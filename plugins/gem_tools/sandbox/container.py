"""Container: a sandbox worker in a container of podman or docker, from an image of the user's.

The first process of the container is a supervisor. It ends when gem closes its standard input or
dies, and the kernel then ends everything else in the container. The worker is its child, without
rights. It reports through a named pipe, because docker passes no other descriptors to a container.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.sandbox import seccomp
from gem_tools.sandbox.launch import Plan, SandboxLimits, worker_text
from gem_tools.sandbox.process import Box

__all__ = ["IMAGE", "ContainerBox", "ContainerPlan", "engine", "missing_image"]

IMAGE = "docker.io/library/python:3.12-slim"
_ENGINE = "GEM_CONTAINER_ENGINE"
_REPORT = "/gem-report"
_START = "import sys; exec(compile(sys.argv.pop(), 'worker.py', 'exec'))"
_SECONDS_TO_STOP = 3.0
_SECONDS_FOR_ENGINE = 30.0
_FIRST_UID, _UIDS = 10_000, 50_000
"""The user ids of programs: rootless podman has 65,536."""
_uids = itertools.count(os.getpid())


class ContainerPlan(Plan):
    """The command, environment and settings of every container of a sandbox."""

    def __init__(
        self,
        image: str,
        limits: SandboxLimits,
        packages: bool = False,
        preload: Sequence[str] = (),
    ) -> None:
        """Plan containers of an image that has python3; `packages` makes its packages importable"""
        super().__init__(("container",), limits, False, preload)
        self.image, self.packages = image, packages
        self.engine = engine()
        self.disk_mb, self.processes = int(limits.disk_mb), int(limits.processes)
        self.limits["RLIMIT_NPROC"] = self.processes  # of the program's own uid

    def container_command(self, name: str, report: str, settings: str) -> list[str]:
        """Return the command that runs a container in the foreground."""
        podman = Path(self.engine[0]).name.startswith("podman")
        command = [*self.engine, *(("--log-level", "error") if podman else ())]
        command += ["run", "--rm", "--interactive", "--pull", "never", "--name", name]
        command += ["--network", "none", "--hostname", "sandbox", "--log-driver", "none"]
        command += ["--read-only", *(("--read-only-tmpfs=false",) if podman else ())]
        options = f"rw,exec,nosuid,nodev,mode=1777,size={self.disk_mb}m"
        command += ["--tmpfs", f"/tmp:{options}", "--shm-size", f"{self.disk_mb}m"]
        command += ["--memory", str(self.memory), "--memory-swap", str(self.memory)]
        command += ["--pids-limit", str(self.processes + 1)]  # and the supervisor
        # The engine's defaults may exceed the limits of this process.
        for limit, most in (("core", 0), ("nofile", 256), ("nproc", 1024)):
            value = _at_most(limit, most)
            command += ["--ulimit", f"{limit}={value}:{value}"]
        # The worker changes to an unused uid; the supervisor stays out of its reach.
        command += ["--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID"]
        command += ["--user", "0:0", "--security-opt", "no-new-privileges"]
        command += ["--security-opt", "label=disable"]  # SELinux would hide the pipe
        command += ["--volume", f"{report}:{_REPORT}", "--workdir", "/tmp"]
        for variable, text in self.environment("/tmp").items():
            if variable != "PATH":  # the image's leads to its python3
                command += ["--env", f"{variable}={text}"]
        python = ["-s", "-B", *(() if self.packages else ("-S",)), "-c", _START, settings]
        return [*command, "--entrypoint", "python3", self.image, *python, worker_text()]

    def settings(self, home: str, report: int | str, uid: int) -> dict[str, Any]:
        """Return the settings of a worker; the filter is that of bubblewrap."""
        settings = super().settings(home, report, uid)
        settings["supervise"] = True
        if seccomp.NAMESPACED:
            settings["seccomp"] = seccomp.NAMESPACED.hex()
        return settings


class ContainerBox(Box):
    """A container that runs one program; ending it ends everything the program started."""

    closes_stdin = False  # that ends the container
    seconds_to_start = 60.0  # an engine may copy the image

    def __init__(self, plan: ContainerPlan) -> None:
        self._engine = plan.engine
        self._name = f"gem-sandbox-{os.getpid()}-{secrets.token_hex(6)}"
        super().__init__(plan)

    def _launch(self, plan: Plan) -> subprocess.Popen[bytes]:
        assert isinstance(plan, ContainerPlan)
        report = os.path.join(self._home, "report")
        os.mkfifo(report)
        os.chmod(report, 0o666)  # the folder is private, and a container has users of its own
        self._report = os.open(report, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        uid = _FIRST_UID + next(_uids) % _UIDS
        settings = repr(plan.settings("/tmp", _REPORT, uid))
        process = subprocess.Popen(
            plan.container_command(self._name, report, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        if process.stderr is not None:  # an engine that hangs does not close it
            os.set_blocking(process.stderr.fileno(), False)
        return process

    def kill(self) -> None:
        """Close the supervisor's input, which ends the container."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _wait_until_ready(self) -> bytes:
        line = super()._wait_until_ready()
        if self._process.stderr is not None:
            self._process.stderr.read()  # warnings of the engine: no program runs yet
        return line

    def _wait_until_gone(self, read_rest: Callable[[], None]) -> None:
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while self._process.poll() is None and time.monotonic() < deadline:
            read_rest()
            time.sleep(0.005)
        self._wait_for_exit()

    def _wait_for_exit(self) -> None:
        """Wait for the engine's client; kill a container that does not end by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_STOP)
            return
        _run([*self._engine, "kill", self._name])
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_STOP)
            return
        super().kill()  # the client: the engine does not answer
        self._process.wait()


@lru_cache(maxsize=1)
def engine() -> tuple[str, ...]:
    """Return the command of the container engine: podman, docker, or one from the environment."""
    command = shlex.split(os.environ.get(_ENGINE, ""))
    for name in command[:1] or ("podman", "docker"):
        path = shutil.which(name)
        if path:
            return (path, *command[1:])
    wanted = command[0] if command else "podman or docker"
    raise ConfigError(
        f"isolation='container' needs a container engine, and {wanted} is not installed; install "
        f"one (apt-get install podman), or name another command in the variable {_ENGINE}"
    )


def missing_image(image: str) -> str:
    """Return why an image cannot be used, or ""."""
    command = [*engine(), "image", "inspect", "--format", "{{.Id}}", image]
    done = _run(command)
    if done.returncode == 0:
        return ""
    reason = done.stderr.strip()[-300:] or f"{command[0]} ended with status {done.returncode}"
    return f"{reason}; get the image first: {shlex.join(engine())} pull {image}"


def _at_most(limit: str, value: int) -> int:
    import resource  # not on Windows

    maximum = resource.getrlimit(getattr(resource, f"RLIMIT_{limit.upper()}"))[1]
    return value if maximum == resource.RLIM_INFINITY else min(value, maximum)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS_FOR_ENGINE
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "the container engine does not answer")
