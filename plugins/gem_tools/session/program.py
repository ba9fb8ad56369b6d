"""The program in a session's box: it keeps a bash alive, writes files and looks at the result.

gem never imports it: `session.py` sends its text to an interpreter in the box, which has only the
standard library. It reads one job per line from its input, as JSON, and writes one answer per line.
Expected results never enter the box: the program returns what it sees, and gem compares.

If gem runs as root, this program is root inside the box and the terminal is another user, which
cannot signal it. Otherwise both are one user: a command can kill this program, which ends the
session, but it can neither read nor change it.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import pty
import resource
import select
import signal
import stat
import sys
import termios
import time
from typing import Any

__all__ = ["main"]

REPORT, COMMANDS = 100, 101
"""The descriptors on which bash reports the end of a command, and reads the next one."""
MOST_DESCRIPTORS = 4096
MOST_OUTPUT, MOST_FILE, MOST_COMMAND, MOST_NAMES = 4 << 20, 4 << 20, 60_000, 20_000
SECONDS_TO_START, SECONDS_TO_RESTART = 30.0, 10.0
SECONDS_TO_INTERRUPT = 1.0, 3.0, 3.0
"""Limits for bash's report: after Ctrl-C, after the command is killed, after bash is killed."""
# bash writes the status and the folder after each command. Typed lines are limited to 4096
# characters, so it reads the command from another descriptor.
PROMPT = 'printf "%d %s\\0" "$?" "$PWD" >&100'
TYPED = b"IFS= read -r -d '' -u 101 REPLY && eval \"$REPLY\"\n"


class Terminal:
    """A bash that stays alive, on its own pseudo-terminal."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.start()

    def start(self) -> None:
        """Start bash and wait for its first prompt."""
        master, slave = pty.openpty()
        flags = termios.tcgetattr(slave)
        flags[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, flags)
        self.flags = flags
        os.fchown(slave, self.settings["uid"] or os.getuid(), -1)
        output, output_end = os.pipe()
        report, report_end = os.pipe()
        commands_end, commands = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            # move the pipes away first: their numbers may be those of the targets
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 110) for fd in (report_end, commands_end)]
            for source, target in ((slave, 0), (output_end, 1), (output_end, 2)):
                os.dup2(source, target)
            os.dup2(high[0], REPORT)
            os.dup2(high[1], COMMANDS)
            environment = {**self.settings["env"], "PS1": "", "PS2": "", "PROMPT_COMMAND": PROMPT}
            arguments = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
            execute(self.settings, arguments, environment, keep=(0, 1, 2, REPORT, COMMANDS))
        for fd in (slave, output_end, report_end, commands_end):
            os.close(fd)
        for fd in (output, report, commands, master):
            os.set_blocking(fd, False)
        self.pid, self.master = pid, master
        self.output, self.report, self.commands = output, report, commands
        self.pipes: tuple[int, ...] = (master, output, report, commands)
        written, _, end = self.wait(time.monotonic() + SECONDS_TO_START)
        if end:
            raise OSError(f"bash does not start: {end}: {text(written)}")

    def run(self, command: str, seconds: float) -> dict[str, Any]:
        """Run a command until its end, a limit, or the end of bash."""
        data = command.encode("utf-8", "replace")
        if b"\0" in data or len(data) > MOST_COMMAND:
            return answer("a command has no NUL character and at most 60,000 bytes", 2, "")
        try:
            return self.type(data, seconds)
        except (OSError, termios.error):  # bash cannot be started, stopped or reached
            self.restart()
            return {**answer("", 1, self.settings["env"]["HOME"]), "end": "killed"}

    def type(self, data: bytes, seconds: float) -> dict[str, Any]:
        """Type a command into bash and wait for its end; replace a bash that ended."""
        drain(self.report)
        self.settle()
        self.forget()
        if os.write(self.commands, data + b"\0") <= len(data):
            raise OSError("bash does not read its commands")
        os.write(self.master, TYPED)
        written, report, end = self.wait(time.monotonic() + seconds)
        if end in ("time", "output"):
            more, report, end_of_interrupt = self.interrupt()
            written += more
            if end_of_interrupt == "exit":
                end = "restart"
        if end in ("exit", "restart"):
            self.start()
            cwd = self.settings["env"]["HOME"]
            return {**answer(text(written), 1, cwd), "end": end}
        status, _, cwd = report.partition(" ")
        # a command can write to the descriptor of the report, too
        number = int(status) if status.isascii() and status.isdigit() else 1
        return {**answer(text(written), number, cwd), "end": end}

    def interrupt(self) -> tuple[bytearray, str, str]:
        """Stop the command as Ctrl-C would; kill it, then bash, if that does not help."""
        written = bytearray()
        self.settle()
        os.write(self.master, b"\x03")
        for attempt, seconds in enumerate(SECONDS_TO_INTERRUPT):
            more, report, end = self.wait(time.monotonic() + seconds, most=sys.maxsize)
            written += more
            if end in ("", "exit"):
                return written, report, end
            with contextlib.suppress(OSError):
                group = self.pid if attempt else os.tcgetpgrp(self.master)
                if attempt or group != self.pid:
                    os.killpg(group, signal.SIGKILL)
        raise OSError("bash cannot be killed")

    def settle(self) -> None:
        """Undo what a command set by `stty`, and drop what nobody read from the terminal."""
        termios.tcsetattr(self.master, termios.TCSAFLUSH, self.flags)

    def forget(self) -> None:
        """Drop a command that bash did not read before its limit; it would run as the next one."""
        # opened once more, because a read of bash must block
        fd = os.open(f"/proc/self/fd/{self.commands}", os.O_RDONLY | os.O_NONBLOCK)
        drain(fd)
        os.close(fd)

    def wait(self, deadline: float, most: int = MOST_OUTPUT) -> tuple[bytearray, str, str]:
        """Collect output until bash reports; return the output, the report, and why it stopped."""
        written = bytearray()
        while True:
            select.select([self.report, self.output], [], [], 0.05)
            report = drain(self.report)
            written += drain(self.output)
            del written[MOST_OUTPUT:]
            if report:
                written += drain(self.output)
                return written, report.split(b"\0")[0].decode("utf-8", "replace"), ""
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                self.pid = 0
                self.close()
                return written, "", "exit"
            if len(written) >= most:
                return written, "", "output"
            if time.monotonic() > deadline:
                return written, "", "time"

    def restart(self) -> None:
        """Kill every process and start a new bash."""
        deadline = time.monotonic() + SECONDS_TO_RESTART
        while True:
            kill_all()
            self.close()
            try:
                return self.start()
            except OSError:  # killed processes count until they are gone
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def close(self) -> None:
        """Kill bash if it lives, and close its pipes."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        for fd in self.pipes:
            os.close(fd)
        self.pipes = ()


def answer(output: str, status: int, cwd: str) -> dict[str, Any]:
    return {"output": output, "status": status, "cwd": cwd, "end": ""}


def kill_all() -> None:
    """Kill every process of the box, except bubblewrap's first and this one; wait until all end."""
    deadline = time.monotonic() + SECONDS_TO_RESTART
    while any(map(is_alive, os.listdir("/proc"))) and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        time.sleep(0.002)


def is_alive(name: str) -> bool:
    """Whether an entry of /proc is another process that runs."""
    if not name.isdigit() or int(name) in (1, os.getpid()):
        return False
    with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="latin-1") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def text(written: bytearray) -> str:
    return written.decode("utf-8", "backslashreplace")


def drain(fd: int) -> bytearray:
    """Read what is available, up to a limit: a writer may be faster."""
    data = bytearray()
    while len(data) < MOST_OUTPUT:
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            break
        if not part:
            break
        data += part
    return data


def become_user(settings: dict[str, Any], keep: tuple[int, ...]) -> None:
    """Drop the rights of this program; close every descriptor but those to keep."""
    first = 0
    for fd in (*sorted(keep), MOST_DESCRIPTORS):
        if first < fd:  # closerange(0, 0) closes everything
            os.closerange(first, fd)
        first = fd + 1
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if settings["uid"]:
        os.setgroups([])
        os.setresgid(*[settings["uid"]] * 3)
        os.setresuid(*[settings["uid"]] * 3)
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def execute(
    settings: dict[str, Any],
    arguments: list[str],
    environment: dict[str, str],
    keep: tuple[int, ...],
) -> None:
    """Become bash; a child that cannot must never go on as a second copy of this program."""
    try:
        become_user(settings, keep)
        os.execve("/bin/bash", arguments, environment)
    finally:
        os._exit(127)


def write(settings: dict[str, Any], files: list[Any]) -> None:
    """Write files, (path, text, mode) each; a path that ends in a slash is a folder."""
    home = settings["env"]["HOME"]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            become_user(settings, keep=(2,))
            for path, content, mode in files:
                target = os.path.join(home, path)
                os.makedirs(
                    target if path.endswith("/") else os.path.dirname(target), exist_ok=True
                )
                if not path.endswith("/"):
                    with open(target, "w", encoding="utf-8", newline="") as file:
                        file.write(content)
                    os.chmod(target, mode)
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1]:
        raise OSError("cannot write the files")


def look(settings: dict[str, Any], what: str, subject: str, seconds: float) -> Any:
    """Return a file, the names below a folder, or what a command prints."""
    home = settings["env"]["HOME"]
    if what == "tree":
        return look_at_tree(os.path.join(home, subject))
    if what == "file":
        return look_at_file(os.path.join(home, subject))
    if what == "run":
        return look_at_run(settings, subject, seconds)
    raise ValueError(f"cannot look at {what!r}")


def look_at_tree(root: str) -> list[str]:
    """Return the paths of the files below a folder, sorted; of too many, only some."""
    names: list[str] = []
    folders = [""]
    while folders and len(names) + len(folders) <= MOST_NAMES:  # os.walk would recurse
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(os.path.join(root, folder)) as entries:
            for entry in itertools.islice(entries, MOST_NAMES + 1):
                is_folder = entry.is_dir(follow_symlinks=False)
                (folders if is_folder else names).append(os.path.join(folder, entry.name))
    return sorted(names)


def look_at_file(path: str) -> Any:
    """Return the kind, mode and content of a file, or None."""
    try:
        link = stat.S_ISLNK(os.lstat(path).st_mode)
        status = os.stat(path)
        seen: dict[str, Any] = {"link": link, "mode": stat.S_IMODE(status.st_mode)}
        seen |= {"real": os.path.realpath(path), "data": None}
        if stat.S_ISREG(status.st_mode) and status.st_size <= MOST_FILE:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            with open(fd, "rb") as file:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    seen["data"] = base64.b64encode(file.read(MOST_FILE)).decode()
        return seen
    except OSError:
        return None


def look_at_run(settings: dict[str, Any], command: str, seconds: float) -> Any:
    """Run a command as the user of the terminal, but in a shell of its own."""
    output, output_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        os.dup2(output_end, 1)
        os.dup2(1, 2)
        environment = {**settings["env"], **settings["look_env"]}
        arguments = ["bash", "--noprofile", "--norc", "-c", command]
        execute(settings, arguments, environment, keep=(0, 1, 2))
    os.close(output_end)
    os.set_blocking(output, False)
    deadline, written, status = time.monotonic() + seconds, bytearray(), -1
    while time.monotonic() < deadline and len(written) < MOST_OUTPUT:
        select.select([output], [], [], 0.02)
        ended = os.waitpid(pid, os.WNOHANG)
        written += drain(output)
        if ended[0]:
            status = os.waitstatus_to_exitcode(ended[1])
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status == -1:
        os.waitpid(pid, 0)
    os.close(output)
    return {"output": text(written), "status": status}


def do(job: dict[str, Any], terminal: Terminal, settings: dict[str, Any]) -> Any:
    if job["do"] == "write":
        return write(settings, job["files"])
    if job["do"] == "run":
        return terminal.run(job["command"], job["seconds"])
    if job["do"] == "look":
        return look(settings, job["what"], job["subject"], job["seconds"])
    if job["do"] == "stop":
        return kill_all()
    raise ValueError(f"unknown job {job['do']!r}")


def main() -> None:
    """Do jobs until the input ends."""
    # Hide the memory and the descriptors of this program from other processes of the same user,
    # which could forge its answers (PR_SET_DUMPABLE).
    if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):
        raise OSError("cannot protect the program from the terminal")
    settings = json.loads(sys.stdin.readline())
    home = settings["env"]["HOME"]
    if settings["uid"]:
        os.chown(home, settings["uid"], settings["uid"])
    os.chdir(home)
    terminal = Terminal(settings)
    for line in sys.stdin:
        try:
            result = {"value": do(json.loads(line), terminal, settings)}
        except Exception as error:  # noqa: BLE001 - gem raises it
            result = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
