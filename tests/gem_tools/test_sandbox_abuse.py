"""Tests of the sandbox against programs that abuse the kernel, the report pipe and the clean-up."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gem_tools.python import PythonTool
from gem_tools.sandbox.cgroup import memory_groups
from gem_tools.sandbox.homes import _folder, remove_tree
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.sandbox.shell import Shell


@pytest.fixture(scope="module", params=["full", "partial"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    limits = SandboxLimits(seconds=10, memory_mb=256, output_kb=8)
    with Sandbox(limits, isolation=request.param, warm=1) as sandbox:
        yield sandbox


# Clean-up.

NEST = """
import os
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
print("nested")
"""


def test_nested_folders_do_not_stop_the_sandbox(sandbox: Sandbox) -> None:
    assert sandbox.run(NEST).stdout == "nested\n"
    for _ in range(5):
        outcomes: list[Any] = []
        call = threading.Thread(
            target=lambda into: into.append(sandbox.run("print(1)")), args=(outcomes,), daemon=True
        )
        call.start()
        call.join(30)
        assert [outcome.stdout for outcome in outcomes] == ["1\n"]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        left = list(Path(_folder()).glob("home-*/d"))
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"the folders are left in {left}")


def test_sandbox_goes_on_when_the_clean_up_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("gem_tools.sandbox.process.remove_tree", fail)
    with Sandbox(SandboxLimits(), isolation="partial", warm=1) as sandbox:
        for _ in range(4):
            assert sandbox.run("print(1)").stdout == "1\n"
        monkeypatch.undo()


def test_tree_with_unreadable_folders_is_removed() -> None:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        home = Path(tempfile.mkdtemp())
        for name in ("a/b/c", "d/e"):
            (home / name).mkdir(parents=True)
            (home / name / "file").write_text("x")
        (home / "link").symlink_to("/")
        (home / "a" / "b").chmod(0o300)
        (home / "a").chmod(0o100)
        (home / "d").chmod(0)
        remove_tree(str(home))
        assert not home.exists()
    finally:
        if root:
            os.seteuid(0)
            shutil.rmtree(home, ignore_errors=True)


def test_worker_that_died_while_waiting_is_replaced() -> None:
    with Sandbox(SandboxLimits(), isolation="partial", warm=1) as sandbox:
        assert sandbox.run("print(1)").stdout == "1\n"
        deadline = time.monotonic() + 60
        while not sandbox._ready and time.monotonic() < deadline:
            time.sleep(0.01)
        process = sandbox._ready[0]._process
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        assert sandbox.run("print(2)").stdout == "2\n"


HOMES = """
import os, signal, sys
from gem_tools.sandbox.sandbox import Sandbox
sandbox = Sandbox(isolation="partial", warm=1)
sandbox.run("open('file', 'w')")
{end}
"""


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_next_process_removes_the_homes_of_one_that_was_killed(end: str) -> None:
    def run(end: str, folder: str) -> None:
        settings = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": folder}
        command = [sys.executable, "-c", HOMES.format(end=end)]
        subprocess.run(command, env={**os.environ, **settings}, timeout=60)

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        run(end, folder)
        assert bool(os.listdir(folder)) == (end != "pass")
        run("pass", folder)
        assert not os.listdir(folder)


def test_homes_of_a_running_process_are_kept() -> None:
    with Sandbox(SandboxLimits(), isolation="partial", warm=1) as sandbox:
        sandbox.start()
        folder = Path(_folder())
        subprocess.run(
            [sys.executable, "-c", HOMES.format(end="pass")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
        )
        assert folder.exists()
        assert sandbox.run("print(1)").stdout == "1\n"


# The report pipe.

FORGE = r"""
import os, struct
lost = b"\x1b[2J," * @SIZE@
body = struct.pack("<4sIII", b"done", 0, len(lost), 0) + lost
for fd in range(3, 20):
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(fd, view):]
    except OSError:
        pass
"""


@pytest.mark.parametrize("state", ["none", "episode"])
@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_forged_report_cannot_flood_the_observation(
    sandbox: Sandbox, state: Any, size: int
) -> None:
    tool = PythonTool(sandbox=sandbox, state=state)
    result = tool.call({"code": FORGE.replace("@SIZE@", str(size))})
    assert len(result.text) < 10_000
    assert len(result.info.get("lost", ())) <= 100
    assert "\x1b" not in result.text + repr(result.info)


def test_names_that_cannot_be_kept_are_listed(sandbox: Sandbox) -> None:
    outcome = sandbox.run("ok = 1\nkept = lambda: 1\ngone = open('/dev/null')", keep=True)
    assert "gone" in outcome.lost and "ok" not in outcome.lost
    outcome = sandbox.run("for n in range(500): globals()[f'x{n}'] = open", keep=True)
    outcome = sandbox.run("for n in range(500): globals()[f'x{n}'] = (i for i in ())", keep=True)
    assert len(outcome.lost) <= 101


# The kernel.

CALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(*@CALL@)
print(result, errno.errorcode.get(ctypes.get_errno(), "none"))
"""
NUMBERS = {
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_call_is_denied(sandbox: Sandbox, name: str) -> None:
    number = NUMBERS[name][platform.machine() == "aarch64"]
    outcome = sandbox.run(CALL.replace("@CALL@", repr((number, -1, -1, -1, 0))))
    assert outcome.stdout == "-1 EPERM\n"


def test_program_cannot_lock_a_file_of_the_host(sandbox: Sandbox) -> None:
    lock = "fcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX)"
    outcome = sandbox.run(f"import fcntl\n{lock}\nprint('locked')")
    assert outcome.stdout == "" and "PermissionError" in outcome.stderr


def test_program_can_lock_its_own_files(sandbox: Sandbox) -> None:
    code = (
        "import fcntl, sqlite3\n"
        "with open('a', 'w') as file:\n    fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "base = sqlite3.connect('b')\nbase.execute('create table t (n)')\nbase.commit()\n"
        "print('fine')"
    )
    outcome = sandbox.run(code)
    assert outcome.stdout == "fine\n", outcome.stderr


def test_only_named_socket_families_are_allowed(sandbox: Sandbox) -> None:
    code = (
        "import socket\nopened = []\nfor family in range(1, 46):\n    for kind in (1, 2, 3, 5):\n"
        "        try:\n            socket.socket(family, kind).close()\n"
        "            opened.append(family)\n        except OSError:\n            pass\n"
        "print(sorted(set(opened)))"
    )
    allowed = {1, 16} if sandbox.containment.full else set()
    opened = sandbox.run(code)
    assert set(eval(opened.stdout)) <= allowed, opened


HOLD = {
    "memfd": """
        fd = os.memfd_create("x")
        for _ in range(8):
            got += os.write(fd, bytes(MB))
        held.append(fd)
    """,
    "sysv": """
        id = libc.shmget(0, 8 * MB, 0o1600)
        place = libc.shmat(id, None, 0) if id >= 0 else -1
        if place in (-1, None):
            raise OSError("no memory")
        ctypes.memset(place, 1, 8 * MB)
        libc.shmdt(ctypes.c_void_p(place))
        got += 8 * MB
    """,
    "unix": """
        for s in (pair := socket.socketpair()):
            for option in (7, 8):
                try:
                    s.setsockopt(1, option, 64 * MB)
                except OSError:
                    pass
            s.setblocking(False)
            held.append(s)
            try:
                while got < 200 * MB:
                    got += s.send(bytes(65536))
            except BlockingIOError:
                pass
    """,
    "tcp": """
        server = socket.create_server(("127.0.0.1", 0))
        sender = socket.create_connection(server.getsockname())
        held += [server, sender, server.accept()[0]]
        sender.setblocking(False)
        for _ in range(100):
            try:
                got += sender.send(bytes(MB))
            except BlockingIOError:
                time.sleep(0.01)
    """,
}


@pytest.mark.parametrize("way", HOLD)
def test_kernel_memory_does_not_exceed_the_limit(way: str, sandbox: Sandbox) -> None:
    code = (
        "import ctypes, os, socket, time\nlibc = ctypes.CDLL(None)\n"
        "libc.shmat.restype = ctypes.c_void_p\nMB, got, held = 1 << 20, 0, []\n"
        "begin = time.monotonic()\n"
        "while got < 200 * MB and time.monotonic() < begin + 4:\n    try:\n"
        f"        if True:\n    {HOLD[way].rstrip().replace(chr(10), chr(10) + '    ')}\n"
        "    except OSError as e:\n        break\n"
        "print(got // MB)"
    )
    outcome = sandbox.run(code)
    assert outcome.end == "ok", outcome.stderr
    assert int(outcome.stdout) <= 64


def test_processes_together_do_not_exceed_the_memory_limit() -> None:
    if memory_groups() is None:
        pytest.skip("needs a memory cgroup")
    code = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
        "        held = os.urandom(1 << 20) * 100\n        time.sleep(2)\n"
        "        os._exit(0)\n"
        "killed = 0\nfor _ in range(6):\n    killed += os.wait()[1] == 9\nprint(killed)"
    )
    limits = SandboxLimits(seconds=20, memory_mb=200, disk_mb=8)
    with Sandbox(limits, isolation="full", warm=1) as sandbox:
        assert "cgroup" in sandbox.containment.parts
        for _ in range(2):  # the second call uses the group of the first
            outcome = sandbox.run(code)
            assert outcome.end == "killed" or int(outcome.stdout) >= 4, outcome
        assert sandbox.run("print(len(bytes(100 << 20)))").stdout == f"{100 << 20}\n"


def test_memory_cgroups_are_removed_at_the_end_or_by_the_next_process() -> None:
    if (groups := memory_groups()) is None:
        pytest.skip("needs a memory cgroup")

    def groups_after(end: str) -> list[Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOMES.format(end=end)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        process.wait(60)
        return list(groups._parent.glob(f"gem-sandbox-{process.pid}-*"))

    assert groups_after("pass") == []
    left = groups_after("os.kill(os.getpid(), signal.SIGKILL)")
    assert left
    deadline = time.monotonic() + 30
    while any(group.exists() for group in left) and time.monotonic() < deadline:
        groups_after("pass")  # the killed processes may take a moment to end
    assert not any(group.exists() for group in left)


def test_program_cannot_outlive_gem_by_prctl() -> None:
    with Sandbox(SandboxLimits(), isolation="partial", warm=0) as sandbox:
        outcome = sandbox.run(
            "import ctypes\nprint(ctypes.CDLL(None, use_errno=True).prctl(1, 0, 0, 0, 0), "
            "ctypes.get_errno())"
        )
    assert outcome.stdout == f"-1 {errno.EPERM}\n"


# Text for the model.


def test_control_characters_are_escaped(sandbox: Sandbox) -> None:
    outcome = sandbox.run("print('a\\x1b[1m \\x9b2J \\u202e \\u2066 \\t é')")
    assert outcome.stdout == "a\\x1b[1m \\x9b2J \\u202e \\u2066 \t é\n"


def test_shell_output_has_no_control_characters() -> None:
    shell = Shell()
    try:
        home = shell.create([])
        ran = shell.run(r"printf 'a\x1b[2J\tb\n\xc2\x9b'", home)
        assert ran.output == "a\\x1b[2J\tb\n\\x9b"
    finally:
        shell.close()
