"""Tests of terminal sessions: what lives on, limits, isolation and the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gem_tools.session.session import Session, SessionLost


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


def test_files_processes_variables_and_folder_persist(session: Session) -> None:
    session.write([("a/b.txt", "hello\n", 0o640), ("empty/", "", 0o755)])
    result = session.run("stat -c '%a %n' a/b.txt; ls; X=5; cd a; f() { echo f $1; }; sleep 60 &")
    assert result.output.startswith("640 a/b.txt\na\nempty\n")
    assert (result.status, result.cwd, result.end) == (0, "/home/user/a", "")
    result = session.run("pwd; echo [$X]; cat b.txt; f 2; pgrep -c sleep; whoami")
    assert result.output == "/home/user/a\n[5]\nhello\nf 2\n1\nuser\n"


@pytest.mark.parametrize(
    ("command", "end", "status"),
    [
        ("sleep 30", "time", 130),
        ("while true; do :; done", "time", 130),
        ("trap '' INT; sleep 30", "time", 137),
        ("cat", "time", 130),  # waits for input that never comes
        ("yes", "output", 130),
    ],
)
def test_stopped_command_leaves_the_shell_alive(
    session: Session, command: str, end: str, status: int
) -> None:
    session.run("X=5")
    result = session.run(command, seconds=0.5)
    assert (result.end, result.status) == (end, status) and len(result.output) < 9000
    assert session.run("echo $X").output == "5\n"


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$", "exec true", "set -e; false"])
def test_new_shell_replaces_one_that_ended(session: Session, command: str) -> None:
    session.run("echo kept > kept.txt; sleep 60 & disown")
    assert session.run(command).end == "exit"
    assert session.run("cat kept.txt; pgrep -c sleep").output == "kept\n1\n"


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("no-such-program", 127, "command not found"),
        ("if true; then", 2, "syntax error"),
        ("echo a\0b", 2, "NUL"),
        ("echo " + "x" * 70_000, 2, "60,000"),
        ("echo \udc80", 0, "?"),
        ("printf '\\033[31mred'", 0, "\\x1b[31mred"),
        ("cat <<'EOF'\none $X \"two\"\nEOF", 0, 'one $X "two"'),
        ("true # " + "x" * 50_000, 0, ""),
    ],
)
def test_odd_commands(session: Session, command: str, status: int, output: str) -> None:
    result = session.run(command)
    assert (result.status, result.end) == (status, "") and output in result.output


def test_session_cannot_see_the_machine(session: Session) -> None:
    secret = Path.home() / f"gem-test-{os.getpid()}"
    result = session.run(
        f"cat /etc/shadow {secret}; ls /root/.ssh /home; touch /usr/x /etc/x /x; "
        "echo x > /proc/sys/kernel/core_pattern; unshare -U true; mount -t tmpfs x /tmp; "
        "cat /proc/1/environ; kill -0 1 || echo cannot; (echo > /dev/tcp/1.1.1.1/80) && echo up"
    )
    assert "cannot" in result.output and "up\n" not in result.output
    for problem in ("Read-only file system", "No such file", "Operation not permitted"):
        assert problem in result.output or "Permission denied" in result.output
    assert len(session.run("ls /proc | grep -c '^[0-9]'").output) <= 2  # its own processes only


def test_fork_bomb_and_full_disk_stay_in_the_session(session: Session) -> None:
    session.run(":() { : | : & }; :", seconds=1.0)
    session.run("head -c 500000000 /dev/zero > big; head -c 500000000 /dev/zero > /tmp/big")
    session.stop()
    names = session.tree(".")
    assert names == ["big"]
    other = Session()
    assert other.run("echo fine").output == "fine\n"
    other.close()


def test_looking_does_not_trust_the_shell(session: Session) -> None:
    session.run("mkdir bin; printf '#!/bin/sh\\necho forged\\n' > bin/git; chmod +x bin/git")
    session.run("export PATH=~/bin:$PATH; git() { echo forged; }; ln -s /dev/zero z; echo x > f")
    assert session.prints("git --version")[0].startswith("git version")
    assert session.prints("sleep 9", seconds=0.3)[1] == -1
    seen = session.file("f")
    assert seen is not None and (seen.content, seen.mode, seen.link) == (b"x\n", 0o644, False)
    link = session.file("z")
    assert link is not None and link.link and link.content is None
    assert session.file("nothing") is None


def test_killing_everything_does_not_end_the_session_of_root(session: Session) -> None:
    session.run("kill -9 -1; kill -9 1 2")
    if os.geteuid() == 0:
        assert session.run("echo alive").output == "alive\n"
    else:
        with pytest.raises(SessionLost):
            session.run("echo alive")


def test_closed_session_raises(session: Session) -> None:
    session.close()
    session.close()
    with pytest.raises(SessionLost):
        session.run("true")


def test_nothing_is_left_of_a_killed_process() -> None:
    program = (
        "from gem_tools.session.session import Session\n"
        "s = Session(); s.write([('x', 'y', 0o644)])\n"
        "s.run('sleep 4321 & disown')\nprint(s._process.pid, flush=True)\ninput()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None and process.stdin is not None
    box = int(process.stdout.readline())
    assert _children(box)
    everything = _descendants(box)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in everything):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for child in _children(pid):
        found += _descendants(child)
    return found
