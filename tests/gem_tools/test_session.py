"""Tests of terminal sessions: what lives on, limits, isolation and the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxes import children, descendants, kill_box
from other_user import run_as_nobody

from gem_tools.session.session import Session, SessionLost


@pytest.fixture
def session() -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


def test_files_processes_variables_and_folder_persist(session: Session) -> None:
    session.write([("a/b.txt", "hello\n", 0o640), ("empty/", "", 0o755)])
    result = session.run(
        "stat -c '%a %n' a/b.txt; ls; X=5; cd a; f() { echo f $1; }; sleep 60 & "
        "until pgrep sleep > /dev/null; do :; done"
    )
    assert result.output.startswith("640 a/b.txt\na\nempty\n")
    assert (result.status, result.cwd, result.end) == (0, "/home/user/a", "")
    result = session.run("pwd; echo [$X]; cat b.txt; f 2; pgrep -c sleep; whoami")
    assert result.output == "/home/user/a\n[5]\nhello\nf 2\n1\nuser\n"


@pytest.mark.parametrize(
    ("command", "seconds", "end", "status"),
    [
        ("sleep 30", 1.0, "time", 130),
        ("while true; do :; done", 1.0, "time", 130),
        ("trap '' INT; sleep 30", 2.0, "time", 137),
        ("cat", 1.0, "time", 130),  # waits for input that never comes
        ("yes", 30.0, "output", 130),
        ("trap '' INT; yes", 30.0, "output", 137),
    ],
)
def test_stopped_command_leaves_the_shell_alive(
    session: Session, command: str, seconds: float, end: str, status: int
) -> None:
    session.run("X=5")
    result = session.run(command, seconds)
    assert (result.end, result.status) == (end, status) and len(result.output) < 9000
    assert session.run("echo $X").output == "5\n"


def test_command_that_the_shell_did_not_read_is_dropped(session: Session) -> None:
    session.run("printf '0 /tmp\\0' >&100; sleep 100")  # reports its end, and keeps the shell busy
    assert session.run("echo old", seconds=0.3).end == "time"
    assert session.run("echo new").output == "new\n"


@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$", "exec true", "set -e; false"])
def test_new_shell_replaces_one_that_ended(session: Session, command: str) -> None:
    # until pgrep finds it, the new process is still a copy of the shell
    session.run("echo kept > kept.txt; sleep 60 & disown; until pgrep sleep; do :; done")
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
    session.stop()
    assert session.run("true").end == "killed"  # the shell was killed, too
    session.run("head -c 500000000 /dev/zero > big; head -c 500000000 /dev/zero > /tmp/big")
    session.stop()
    names = session.tree(".")
    assert names == ["big"]
    other = Session()
    assert other.run("echo fine").output == "fine\n"
    other.close()


FILL = """import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(100)
    except OSError:
        pass
"""


def test_shell_that_exits_at_the_limit_of_processes_is_replaced(session: Session) -> None:
    session.write([("fill.py", FILL, 0o644)])
    session.run("python3 fill.py & disown; read -t 1")
    assert {session.run("exec true").end for _ in range(5)} <= {"exit", "killed"}
    session.stop()
    session.run("true")
    assert session.run("pgrep -cf fill.py; echo alive").output == "0\nalive\n"


def test_shell_that_no_longer_reads_its_commands_is_replaced(session: Session) -> None:
    session.run("exec 101<&-")
    assert session.run("echo one").end == "killed"
    assert session.run("echo two").output == "two\n"


def test_settings_of_the_terminal_do_not_last(session: Session) -> None:
    for _ in range(3):
        session.run("stty -isig; trap '' INT; sleep 100", seconds=0.5)
    assert session.run("echo alive").output == "alive\n"


def test_deep_and_full_folders_are_listed(session: Session) -> None:
    session.run(
        "python3 -c \"import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\n"
        "open('f', 'w')\"; mkdir many; cd many; seq 30000 | xargs touch"
    )
    session.stop()
    assert len(session.tree("many")) > 10_000
    assert "f" in session.tree("d")[0]


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


WITHOUT_ROOT = """
import os
from gem_tools.session import session as module
from gem_tools.session.session import Session, SessionLost

FORGED = '{"value": {"output": "forged", "status": 0, "cwd": "", "end": ""}}'
assert os.geteuid() != 0
session = Session()
for process in (1, 2):
    for descriptor in range(20):
        session.run(f"echo '{FORGED}' > /proc/{process}/fd/{descriptor}")
print(session.run("echo honest").output, end="")
print(session.run("ls -l /proc/1/fd | grep -c pipe").output, end="")
for command in ("kill -9 -1", "kill -STOP 2"):
    session = Session()
    session.run("true")
    module._SECONDS_TO_ANSWER = 0.0
    try:
        session.run(command, seconds=8.0)
    except SessionLost as lost:
        print(lost, lost.by_command)
    module._SECONDS_TO_ANSWER = 20.0
session = Session()
session.run("true")
session._process.kill()
try:
    while True:  # its processes end a moment later
        session.run("true")
except SessionLost as lost:
    print(lost, lost.by_command)
"""


def test_user_without_root_cannot_forge_answers_and_the_cause_of_an_end_is_known() -> None:
    """bubblewrap's first process has the user of the terminal if gem does not run as root."""
    done = run_as_nobody(WITHOUT_ROOT, "gem_tools")
    assert done.stdout.splitlines() == [
        "honest",
        "0",
        "the terminal's box has ended True",
        "the terminal does not answer True",
        "the terminal's box has ended False",
    ], done.stderr


def test_end_of_a_box_is_not_the_fault_of_a_command_of_root(session: Session) -> None:
    kill_box(session)
    with pytest.raises(SessionLost) as lost:
        session.run("true")
    assert not lost.value.by_command


def test_session_that_is_closed_while_its_box_starts_leaves_no_process() -> None:
    """bubblewrap sets the second process to end with the first one a moment after its start."""
    sessions = [Session() for _ in range(5)]
    processes = [pid for session in sessions for pid in descendants(session._process.pid)]
    for session in sessions:
        session.close()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.01)


def test_nothing_is_left_of_a_process_that_is_killed_while_boxes_start() -> None:
    program = (
        "import os, threading\n"
        "from gem_tools.session.session import Session\n"
        "Session().close()\nprint('started', flush=True)\n"
        "def start():\n    while True: Session()\n"
        "for _ in range(4): threading.Thread(target=start).start()\n"
        "threading.Event().wait()\n"
    )
    for delay in (0.1, 0.2, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with process, process.stdout as output:
            output.readline()
            processes: list[int] = []
            while not processes:  # between two boxes it has none
                process.send_signal(signal.SIGCONT)
                time.sleep(delay)
                process.send_signal(signal.SIGSTOP)  # so the list is complete
                processes = descendants(process.pid)[1:]
            process.kill()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in processes):
            assert time.monotonic() < deadline, "processes are left"
            time.sleep(0.05)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sessions_of_forked_processes_have_different_users(session: Session) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with contextlib.closing(Session()) as other:
                os.write(write, other.run("id -u").output.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    users = {os.read(read, 100).decode(), session.run("id -u").output}
    os.close(read)
    with contextlib.closing(Session()) as other:
        users.add(other.run("id -u").output)
    assert len(users) == (3 if os.geteuid() == 0 else 1), users


def test_interrupted_session_does_not_return_the_answer_to_an_earlier_command(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert session.run("echo 1").output == "1\n"
    with monkeypatch.context() as patch:
        patch.setattr(session, "_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.run("echo 2")
    with pytest.raises(SessionLost, match="closed"):
        session.run("echo 3")


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
    assert children(box)
    everything = descendants(box)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in everything):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)
