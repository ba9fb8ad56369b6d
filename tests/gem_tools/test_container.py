"""Tests of the sandbox in containers of podman or docker, with an image made by the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_image import IMAGE, container_engine
from project import SUPPORT
from sandbox_attacks import ATTACKS, CONTAINER, SECRET

from gem_core.errors import ConfigError
from gem_tools.python import PythonTool
from gem_tools.sandbox import container
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.sandbox.shell import Shell

LIMITS = SandboxLimits(seconds=5, memory_mb=256, disk_mb=16, output_kb=128)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    command, reason = container_engine()
    if not command:
        pytest.skip(f"needs a container engine: {reason}")
    os.environ["GEM_CONTAINER_ENGINE"] = command
    container.engine.cache_clear()
    yield command
    del os.environ["GEM_CONTAINER_ENGINE"]
    container.engine.cache_clear()


@pytest.fixture(scope="module")
def sandbox(engine: str) -> Iterator[Sandbox]:
    with Sandbox(LIMITS, isolation="container", image=IMAGE, warm=2) as sandbox:
        yield sandbox
    wait_until_removed(engine)


def running(engine: str, pid: int | None = None) -> list[str]:
    """Return the containers of a process, by default of this one."""
    command = [*engine.split(), "ps", "--all", "--format", "{{.Names}}"]
    names = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return sorted(name for name in names if name.startswith(f"gem-sandbox-{pid or os.getpid()}-"))


def wait_until_removed(engine: str, pid: int | None = None) -> None:
    """Wait for the engine, which removes containers in the background."""
    deadline = time.monotonic() + 120
    while names := running(engine, pid):
        assert time.monotonic() < deadline, f"containers are left: {names}"
        time.sleep(0.2)


def test_time_limit_stops_the_container(engine: str) -> None:
    """The first test: the containers of the other tests' sandbox start in the background."""
    limits = SandboxLimits(seconds=3)
    with Sandbox(limits, isolation="container", image=IMAGE, warm=0) as sandbox:
        outcome = sandbox.run("import os\nprint('a')\nos.fork()\nwhile True: pass")
        assert (outcome.end, outcome.stdout) == ("time", "a\n")
    wait_until_removed(engine)


@pytest.mark.parametrize(
    ("code", "end", "stdout", "stderr"),
    [
        ("import sys; print('a'); print('b', file=sys.stderr)", "ok", "a\n", "b\n"),
        ("print('x' * 100_000)", "ok", "x" * 100_000 + "\n", ""),
        ("import sys; print(repr(sys.stdin.read()))", "ok", "''\n", ""),
        ("1 / 0", "error", "", "ZeroDivisionError"),
        ("import os; os.abort()", "killed", "", ""),
        ("x = bytes(1 << 30)", "error", "", "MemoryError"),
        ("import os; os.kill(1, 9)", "error", "", "PermissionError"),
        ("open('/usr/x', 'w')", "error", "", "Read-only file system"),
        ("open('/tmp/x', 'wb').write(bytes(20 << 20))", "error", "", "Error"),
    ],
)
def test_program_runs_in_a_container(
    sandbox: Sandbox, code: str, end: str, stdout: str, stderr: str
) -> None:
    outcome = sandbox.run(code)
    assert (outcome.end, outcome.stdout) == (end, stdout)
    assert stderr in outcome.stderr and (stderr or not outcome.stderr)


def test_container_is_full_isolation(sandbox: Sandbox) -> None:
    assert sandbox.containment.full and sandbox.containment.kind == "container"
    assert sandbox.containment.not_contained == ()


def test_names_are_kept_from_call_to_call(sandbox: Sandbox) -> None:
    tool = PythonTool(sandbox=sandbox, state="episode")
    state = tool.call({"code": "a = [1]\ndef f(): return a"}).state
    assert tool.call({"code": "f()"}, state).text == "[1]"


def test_shell_runs_in_a_container(engine: str) -> None:
    shell = Shell(isolation="container", image=IMAGE)
    try:
        home = shell.create([("a.sh", "echo from $PWD", 0o755)])
        ran = shell.run("mkdir b; cd b; bash ../a.sh; cat /proc/1/comm", home)
        assert ran.status == 0 and ran.output.startswith("from /tmp/home/b\n")
        assert shell.run("ls ..", ran.home).output == "a.sh\nb\n"
    finally:
        shell.close()


KILLED = """
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
sandbox = Sandbox(SandboxLimits(seconds=100), isolation="container", image="{image}", warm=1)
assert sandbox.run("print(1)").stdout == "1\\n"
print("running", flush=True)
sandbox.run("while True: pass")
"""


def test_containers_end_when_gem_is_killed(engine: str) -> None:
    command = [sys.executable, "-c", KILLED.format(image=IMAGE)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        time.sleep(1.0)
        deadline = time.monotonic() + 60
        while not running(engine, process.pid):
            assert time.monotonic() < deadline, "no container runs"
            time.sleep(0.2)
    finally:
        process.kill()
        process.communicate()
    wait_until_removed(engine, process.pid)


HERE = ("fork_bomb", "thread_bomb", "raise_limits", "kernel_memory", "fill_disk", "outlive")
"""Attacks on what an engine limits in its own way; the others take a minute."""


@pytest.mark.parametrize("names", [HERE, pytest.param(tuple(ATTACKS), marks=pytest.mark.slow)])
def test_container_contains_every_attack(
    engine: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), "ATTACK_ME": SECRET}
    done = subprocess.run(
        [sys.executable, SUPPORT / "sandbox_attacks.py", CONTAINER, tmp_path, *names],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["name"] for report in reports] == list(names)
    assert [report for report in reports if not report["contained"]] == []


def test_missing_engine_and_image_are_explained(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ConfigError, match="needs isolation='container'"):
        Sandbox(isolation="full", image="python")
    monkeypatch.setenv("GEM_CONTAINER_ENGINE", "no-such-engine")
    container.engine.cache_clear()
    with pytest.raises(ConfigError, match="no-such-engine is not installed"):
        Sandbox(isolation="container")
    monkeypatch.undo()
    container.engine.cache_clear()
    request.getfixturevalue("engine")
    with pytest.raises(ConfigError, match="pull localhost/no-such-image"):
        Sandbox(isolation="container", image="localhost/no-such-image")
