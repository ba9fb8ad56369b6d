"""Attacks on the sandbox: programs that try to escape or to leave traces, and checks for success.

    sandbox_attacks.py KIND FOLDER NAME...

runs the attacks in a sandbox and prints as JSON which of them were contained. It is a separate
process, because some attacks target the process that runs the sandbox. `HARDER` is the fallback
without root and with an old kernel; it must contain the same attacks as the fallback.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import marshal
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import container_image

from gem_tools.sandbox.containment import contain

KINDS = {
    "bubblewrap": {"isolation": "full"},
    "fallback": {"isolation": "partial"},
    "limits only": {"isolation": "partial", "filters": False},
}
HARDER = "fallback as the same user, with the first Landlock"
CONTAINER = "container"
"""A container of `container_image.IMAGE`; it must contain the same attacks as bubblewrap."""
SECRET = "swordfish-8271"
LIMITS = {
    "seconds": 3.0,
    "memory_mb": 512,
    "processes": 16,
    "file_mb": 8,
    "disk_mb": 16,
    "output_kb": 16,
}
TRACE = "gem_attack_left_behind"
"""The start of the names of files that attacks leave."""

Held = Any
"""Whether an attack is contained: True, False or a condition.

- `user`: unless gem runs as root;
- `root`: only if gem runs as root and its programs can run as another user;
- `cap`: unless gem may raise limits, as root usually may;
- `ns`: unless the kernel allows user namespaces.
"""


def expected(held: Held, harder: bool = False) -> bool:
    """Return whether an attack should be contained for the current user."""
    if held == "user":
        return os.geteuid() != 0
    if held == "root":
        return "uid" in contain("partial", True).parts and not harder
    if held == "cap":
        status = Path("/proc/self/status").read_text().splitlines()
        capabilities = next(line for line in status if line.startswith("CapEff"))
        return not int(capabilities.split()[1], 16) >> 24 & 1
    if held == "ns":
        code = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return done.stdout.strip() != "0"
    return bool(held)


@dataclass(frozen=True)
class Attack:
    """An attack, and which kinds of sandbox contain it."""

    title: str
    calls: tuple[str, ...]
    """The programs to run, in order."""
    contained: Callable[[Victim, list[Any]], bool]
    """Checks the outcomes of the calls."""
    held: tuple[Held, Held, Held]
    """The expectation for each of `KINDS`."""


class Victim:
    """The process that runs a sandbox, with targets for the attacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret.txt"
        self.secret.write_text(SECRET)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0gem-attack-{os.getpid()}")
        self.abstract.listen()
        self.abstract.setblocking(False)
        self.letters = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for box, address in zip(
            self.letters,
            (f"\0gem-letters-{os.getpid()}", str(folder / f"letters-{os.getpid()}")),
            strict=True,
        ):
            box.bind(address)
            box.setblocking(False)
        self.signals: list[int] = []
        for number in (signal.SIGUSR1, signal.SIGIO):
            signal.signal(number, lambda got, _: self.signals.append(got))
        self.shown = folder / "shown"
        self.shown.mkdir(exist_ok=True)
        self.module = self.shown / "module.py"
        """A file of the user that programs may read, like the user's interpreter."""
        self.module.write_text("x = 1")
        self.full = [folder / "full.txt", self.shown / "full.py"]
        for path in self.full:
            path.write_text("x = 1")
        self.module.chmod(0o644)
        with contextlib.suppress(OSError):  # not every file system supports attributes
            os.setxattr(self.module, "user.gem", b"here")
        self.looks = self.look()

    @cached_property
    def ipc(self) -> Ipc:
        """Created and removed by one attack only: a killed process would not remove it."""
        return Ipc()

    def look(self) -> tuple[Any, ...]:
        """Return the metadata of the module."""
        attributes, flags = [], bytes(4)
        with contextlib.suppress(OSError):
            attributes = [
                (name, os.getxattr(self.module, name)) for name in os.listxattr(self.module)
            ]
        with contextlib.suppress(OSError), open(self.module, "rb") as file:
            flags = fcntl.ioctl(file, 0x80086601, bytes(8))  # FS_IOC_GETFLAGS
        status = self.module.stat()
        return status.st_mode, status.st_uid, status.st_mtime_ns, attributes, flags

    def fill_in(self, code: str) -> str:
        """Fill in what an attacker could find out."""
        marks = {
            "SECRET_FILE": str(self.secret),
            "PORT": str(self.port),
            "ABSTRACT": f"gem-attack-{os.getpid()}",
            "ID": str(os.getpid()),
            "MODULE": str(self.module),
            "FULL": repr([str(path) for path in self.full]),
            "LETTERS": str(self.folder / f"letters-{os.getpid()}"),
        }
        if "@SHM@" in code:
            marks |= {
                "SHM": str(self.ipc.memory),
                "SEM": str(self.ipc.semaphore),
                "MSG": str(self.ipc.queue),
            }
        for mark, value in marks.items():
            code = code.replace(f"@{mark}@", value)
        return code

    def connected(self) -> bool:
        """Return whether a program connected to one of the sockets."""
        for server in (self.listener, self.abstract):
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                return True
        return False


class Ipc:
    """Kernel objects of the victim: shared memory, a semaphore and a message, with small ids."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None)
        self.libc.shmat.restype = ctypes.c_void_p
        self.memory = self.libc.shmget(0, 4096, 0o600)
        place = self.libc.shmat(self.memory, None, 0)
        ctypes.memmove(place, SECRET.encode(), len(SECRET))
        self.libc.shmdt(ctypes.c_void_p(place))
        self.semaphore = self.libc.semget(0, 1, 0o600)
        self.libc.semctl(self.semaphore, 0, 16, 1)  # SETVAL
        self.queue = self.libc.msgget(0, 0o600)
        letter = ctypes.create_string_buffer(
            (1).to_bytes(8, "little") + SECRET.encode().ljust(16), 24
        )
        self.libc.msgsnd(self.queue, letter, 16, 0)

    def removed_whole(self) -> bool:
        """Remove the objects; return whether all were unchanged."""
        got = ctypes.create_string_buffer(24)
        value = self.libc.semctl(self.semaphore, 0, 12, 0)  # GETVAL
        message = self.libc.msgrcv(self.queue, got, 16, ctypes.c_long(0), 0o4000)  # IPC_NOWAIT
        place = self.libc.shmat(self.memory, None, 0)
        attached = place not in (None, ctypes.c_void_p(-1).value)
        unchanged = (
            value == 1
            and message == 16
            and attached
            and ctypes.string_at(place, len(SECRET)) == SECRET.encode()
        )
        self.libc.shmctl(self.memory, 0, None)
        self.libc.semctl(self.semaphore, 0, 0, 0)
        self.libc.msgctl(self.queue, 0, None)
        return unchanged


def _prints_no_secret(victim: Victim, outcomes: list[Any]) -> bool:
    return all(SECRET not in o.stdout + o.stderr for o in outcomes)


def _last_prints(text: str) -> Callable[[Victim, list[Any]], bool]:
    return lambda victim, outcomes: outcomes[-1].stdout.strip() == text


def _none_runs(victim: Victim, outcomes: list[Any]) -> bool:
    """Return whether no `sleep` with our process id runs; kill any that does."""
    running = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"300.{os.getpid()}".encode() in Path(path).read_bytes().split(b"\0"):
                running.append(int(path.split("/")[2]))
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return not running


def _nothing_left(victim: Victim, outcomes: list[Any]) -> bool:
    package = os.path.dirname(json.__file__)
    folders = ("/tmp", "/var/tmp", "/dev/shm", package, os.path.dirname(package))
    files = [path for folder in folders for path in glob.glob(f"{folder}/{TRACE}*")]
    for path in files:
        os.remove(path)
    return not files and outcomes[-1].stdout.strip() == "nothing"


def _no_shared_memory(victim: Victim, outcomes: list[Any]) -> bool:
    libc = ctypes.CDLL(None)
    memory = libc.shmget(0x6E6D + os.getpid(), 0, 0)
    if memory >= 0:
        libc.shmctl(memory, 0, None)
    return memory < 0


def _no_letters(victim: Victim, outcomes: list[Any]) -> bool:
    for box in victim.letters:
        with contextlib.suppress(BlockingIOError):
            box.recv(64)
            return False
    return True


def _few(victim: Victim, outcomes: list[Any]) -> bool:
    return outcomes[-1].stdout.strip().isdigit() and int(outcomes[-1].stdout) <= LIMITS["processes"]


def _small(victim: Victim, outcomes: list[Any]) -> bool:
    # The limit applies separately to the sandbox's /tmp and its /dev/shm.
    megabytes = outcomes[-1].stdout.strip()
    return megabytes.isdigit() and int(megabytes) <= 2 * LIMITS["disk_mb"]


def _short(victim: Victim, outcomes: list[Any]) -> bool:
    (outcome,) = outcomes
    return (
        len(outcome.stdout) <= LIMITS["output_kb"] * 1024
        and outcome.seconds < LIMITS["seconds"] + 20
        and outcome.end != "ok"
    )


FIND_TRACES = f"""
import glob, os, tempfile
places = ["/tmp", "/var/tmp", "/dev/shm", os.getcwd(), os.path.expanduser("~")]
places += [tempfile.gettempdir(), os.path.dirname(os.__file__)]
found = []
for place in places:
    try:
        found += [name for name in os.listdir(place) if name.startswith("{TRACE}")]
    except OSError:
        pass
print(found or "nothing")
"""

EMPTY_FILES = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
for path in @FULL@:
    how = struct.pack("<QQQ", os.O_TRUNC | 3, 0, 0)
    ways = [
        lambda: os.truncate(path, 0),
        lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        lambda: os.open(path, 3 | os.O_TRUNC),
        lambda: os.open(path, os.O_WRONLY | os.O_TRUNC),
        lambda: libc.syscall(437, -100, path.encode(), how, len(how)),  # openat2
    ]
    for way in ways:
        try:
            print(way())
        except OSError as e:
            print(e)
"""

CHANGE_FILE = """
import fcntl, os
ways = [
    lambda fd: os.fchown(fd, os.getuid(), os.getgid()) or os.fchmod(fd, 0),
    lambda fd: os.chmod("@MODULE@", 0),
    lambda fd: os.setxattr(fd, "user.more", b"here"),
    lambda fd: os.removexattr(fd, "user.gem"),
    lambda fd: os.removexattr("@MODULE@", "user.gem"),
    lambda fd: os.removexattr("@MODULE@", "user.gem", follow_symlinks=False),
    lambda fd: fcntl.ioctl(fd, 0x40086602, (0x40).to_bytes(8, "little")),  # FS_IOC_SETFLAGS
    lambda fd: os.utime(fd, (1, 1)),
]
for mode in (os.O_RDONLY, 3):
    for way in ways:
        try:
            print(way(os.open("@MODULE@", mode)))
        except OSError as e:
            print(e)
"""

SIGNAL_BY_DESCRIPTORS = """
import ctypes, fcntl, os, platform, signal, socket, struct
call = ctypes.CDLL(None).syscall
call.argtypes = [ctypes.c_long] * 4
fcntl_number = 25 if platform.machine() == "aarch64" else 72
high = 1 << 32  # the kernel looks at the low half only
ways = [
    lambda fd: fcntl.fcntl(fd, 8, @ID@),  # F_SETOWN
    lambda fd: fcntl.fcntl(fd, 15, struct.pack("ii", 1, @ID@)),  # F_SETOWN_EX
    lambda fd: call(fcntl_number, fd, 8 | high, @ID@),
    lambda fd: fcntl.ioctl(fd, 0x8901, struct.pack("i", @ID@)),  # FIOSETOWN
    lambda fd: fcntl.ioctl(fd, 0x8902, struct.pack("i", @ID@)),  # SIOCSPGRP
]
for pair in (os.pipe, lambda: [s.detach() for s in socket.socketpair()]):
    for own in ways:
        reader, writer = pair()
        for step in (
            lambda: own(reader),
            lambda: fcntl.fcntl(reader, 10, signal.SIGUSR1),  # F_SETSIG
            lambda: fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC),
            lambda: os.write(writer, b"x"),
        ):
            try:
                step()
            except OSError as e:
                print(e)
"""

TAKE_SHARED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
place = libc.shmat(@SHM@, None, 0)
if place not in (None, ctypes.c_void_p(-1).value):
    print(ctypes.string_at(place, 64))
got = ctypes.create_string_buffer(24)
libc.msgrcv(@MSG@, got, 16, ctypes.c_long(0), 0o4000)
print(got.raw)
libc.semctl(@SEM@, 0, 16, 7)
print(libc.shmctl(@SHM@, 0, None))
print(libc.semctl(@SEM@, 0, 0, 0))
print(libc.msgctl(@MSG@, 0, None))
"""

KERNEL_MEMORY = """
import ctypes, os, socket
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
held, got, MB = [], 0, 1 << 20

def memfd():
    held.append(os.memfd_create("x"))
    return sum(os.write(held[-1], bytes(MB)) for _ in range(8))

def shared():
    place = libc.shmat(libc.shmget(0, 8 * MB, 0o1600), None, 0)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError("refused")
    ctypes.memset(place, 1, 8 * MB)
    libc.shmdt(ctypes.c_void_p(place))
    return 8 * MB

def pair():
    sent = 0
    held.append(socket.socketpair())
    for end in held[-1]:
        end.setblocking(False)
        try:
            end.setsockopt(1, 7, 8 * MB)  # SO_SNDBUF
        except OSError:
            pass
        try:
            while True:
                sent += end.send(bytes(65536))
        except BlockingIOError:
            pass
    return sent

for hold in (memfd, shared, pair):
    try:
        while got < 200 * MB:
            got += hold()
    except OSError:
        pass
print(got // MB)
"""

ATTACKS: dict[str, Attack] = {
    "read_passwd": Attack(
        "read /etc/passwd",
        ("try:\n    print(open('/etc/passwd').read())\nexcept OSError as e:\n    print(e)",),
        lambda victim, outcomes: "root:" not in outcomes[0].stdout,
        (True, True, False),
    ),
    "read_file": Attack(
        "read a file of the user",
        ("try:\n    print(open('@SECRET_FILE@').read())\nexcept OSError as e:\n    print(e)",),
        _prints_no_secret,
        (True, True, False),
    ),
    "empty_file": Attack(
        "empty a file of the user",
        (EMPTY_FILES,),
        lambda victim, outcomes: all(path.read_text() == "x = 1" for path in victim.full),
        (True, True, False),
    ),
    "change_file": Attack(
        "make a file that may be read unreadable, or change its attributes",
        (CHANGE_FILE,),
        lambda victim, outcomes: victim.look() == victim.looks,
        (True, True, False),
    ),
    "read_environment": Attack(
        "read the parent's environment variables",
        (
            "import glob, os\nprint(os.environ)\n"
            "paths = [*glob.glob('/proc/[0-9]*/environ'), f'/proc/{os.getppid()}/environ']\n"
            "for path in paths:\n"
            "    try:\n        text = open(path, 'rb').read()\n"
            "        print([part for part in text.split(b'\\0') if b'ATTACK' in part])\n"
            "    except OSError:\n        pass",
        ),
        _prints_no_secret,
        (True, True, False),
    ),
    "socket": Attack(
        "open a socket to a service on this machine",
        (
            "import socket\ntry:\n    socket.create_connection(('127.0.0.1', @PORT@), 2)\n"
            "except OSError as e:\n    print(e)\n"
            "try:\n    s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@')\n"
            "except OSError as e:\n    print(e)",
        ),
        lambda victim, outcomes: not victim.connected(),
        (True, True, False),
    ),
    "datagram": Attack(
        "send from a pair of datagram sockets to a service on this machine",
        (
            "import socket\nfor kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):\n"
            "    for address in ('\\0gem-letters-@ID@', '@LETTERS@'):\n        try:\n"
            "            socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b'hello', address)\n"
            "        except OSError as e:\n            print(e)",
        ),
        _no_letters,
        (True, True, False),
    ),
    "fork_bomb": Attack(
        "fork bomb (at most 120 processes in this test)",
        (
            "import os, time\ncount = 1\nfor _ in range(120):\n"
            "    try:\n        pid = os.fork()\n    except OSError:\n        break\n"
            "    if pid == 0:\n        time.sleep(60)\n        os._exit(0)\n    count += 1\n"
            "print(count)",
        ),
        _few,
        (True, True, "user"),
    ),
    "thread_bomb": Attack(
        "thread bomb (at most 120 threads in this test)",
        (
            "import threading\nthreading.stack_size(1 << 18)\nend = threading.Event()\ncount = 1\n"
            "for _ in range(120):\n"
            "    try:\n        threading.Thread(target=end.wait, daemon=True).start()\n"
            "    except RuntimeError:\n        break\n"
            "    count += 1\nend.set()\nprint(count)",
        ),
        _few,
        (True, "root", "user"),
    ),
    "allocate": Attack(
        "allocate 4 GB",
        (
            "try:\n    block = bytearray(4 << 30)\n    print('got it')\nexcept MemoryError:\n"
            "    print('refused')",
        ),
        _last_prints("refused"),
        (True, True, True),
    ),
    "raise_limits": Attack(
        "raise the limits, then allocate 1 GB",
        (
            "import resource\ntry:\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
            "except (ValueError, OSError):\n    pass\ntry:\n    block = bytearray(1 << 30)\n"
            "    print('got it')\n"
            "except MemoryError:\n    print('refused')",
        ),
        _last_prints("refused"),
        (True, True, "cap"),
    ),
    "kernel_memory": Attack(
        "hold memory outside of processes: memfds, shared memory, sockets (200 MB in this test)",
        (KERNEL_MEMORY,),
        lambda victim, outcomes: (
            outcomes[-1].stdout.strip().isdigit() and int(outcomes[-1].stdout) <= 64
        ),
        (True, True, False),
    ),
    "nested_folders": Attack(
        "nest 1,500 folders, which cannot be removed by recursion",
        (
            "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')",
            *["print('next')"] * 4,
        ),
        _last_prints("next"),
        (True, True, True),
    ),
    "fill_disk": Attack(
        "fill the disk (at most 100 MB in this test)",
        (
            "import os\nwritten = 0\nfor n in range(100):\n    for place in ('.', '/dev/shm'):\n"
            "        try:\n"
            f"            with open(f'{{place}}/{TRACE}{{n}}', 'wb') as f:\n"
            f"                f.write(bytes(1 << 20))\n"
            "            written += 1\n            break\n        except OSError:\n"
            "            pass\n    else:\n        break\n"
            f"for n in range(100):\n    try:\n        os.remove(f'/dev/shm/{TRACE}{{n}}')\n"
            f"    except OSError:\n        pass\n"
            "print(written)",
        ),
        _small,
        (True, False, False),
    ),
    "big_file": Attack(
        "write one file of 100 MB",
        (
            "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ntry:\n"
            "    with open('big', 'wb') as f:\n"
            "        for _ in range(100):\n            f.write(bytes(1 << 20))\nexcept OSError:\n"
            "    pass\n"
            "print('small' if os.path.getsize('big') <= 9 << 20 else 'big')",
        ),
        _last_prints("small"),
        (True, True, True),
    ),
    "endless_output": Attack(
        "write output without end",
        ("while True:\n    print('x' * 1000)",),
        _short,
        (True, True, True),
    ),
    "endless_loop": Attack(
        "compute without end", ("while True:\n    pass",), _short, (True, True, True)
    ),
    "outlive": Attack(
        "outlive the call as a daemon",
        (
            "import fcntl, os\nr, w = os.pipe()\nhigh = fcntl.fcntl(w, fcntl.F_DUPFD_CLOEXEC, 64)\n"
            "os.close(w)\n"
            "try:\n    pid = os.fork()\nexcept OSError:\n    raise SystemExit(0)\n"
            "if pid == 0:\n    os.setsid()\n"
            "    if os.fork() == 0:\n        for fd in range(64):\n            try:\n"
            "                os.close(fd)\n"
            "            except OSError:\n                pass\n"
            "        os.execv('/bin/sleep', ['sleep', '300.@ID@'])\n"
            "    os._exit(0)\nos.waitpid(pid, 0)\nos.close(high)\nos.read(r, 1)",
        ),
        _none_runs,
        (True, True, False),
    ),
    "leave_file": Attack(
        "leave a file for the next call",
        (
            "import os, tempfile\n"
            "places = ['/tmp', '/var/tmp', '/dev/shm', os.getcwd(), os.path.expanduser('~')]\n"
            "for place in [*places, tempfile.gettempdir()]:\n"
            f"    try:\n        open(os.path.join(place, '{TRACE}.txt'), 'w').write('here')\n"
            f"    except OSError:\n        pass",
            FIND_TRACES,
        ),
        _nothing_left,
        (True, True, False),
    ),
    "leave_module": Attack(
        "leave a module beside the standard library",
        (
            f"import os\nbeside = os.path.join(os.path.dirname(os.__file__), '{TRACE}.py')\n"
            "try:\n    open(beside, 'w').write('x = 1')\nexcept OSError:\n    pass",
            FIND_TRACES,
        ),
        _nothing_left,
        (True, True, "user"),
    ),
    "leave_shared_memory": Attack(
        "leave shared memory in the kernel",
        ("import ctypes\nprint(ctypes.CDLL(None).shmget(0x6E6D + @ID@, 4096, 0o1666))",),
        _no_shared_memory,
        (True, True, False),
    ),
    "take_shared_memory": Attack(
        "read or remove shared memory, semaphores and messages of the user",
        (TAKE_SHARED_MEMORY,),
        lambda victim, outcomes: victim.ipc.removed_whole() and _prints_no_secret(victim, outcomes),
        (True, True, False),
    ),
    "patch_module": Attack(
        "leave a patched module for the next call",
        (
            "import math, builtins\nmath.sqrt = lambda x: 42\nbuiltins.len = lambda x: 42",
            "import math\nprint(math.sqrt(4), len('ab'))",
        ),
        _last_prints("2.0 2"),
        (True, True, True),
    ),
    "leave_thread": Attack(
        "leave a thread for the next call",
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "import threading\nprint(threading.active_count())",
        ),
        _last_prints("1"),
        (True, True, True),
    ),
    "kill_parent": Attack(
        "kill the parent",
        (
            "import os, signal\nfor pid in {os.getppid(), @ID@}:\n    try:\n"
            "        os.kill(pid, signal.SIGKILL)\n"
            "    except OSError as e:\n        print(e)\nimport time\ntime.sleep(0.3)",
        ),
        # A killed process prints no report, which the test counts as not contained.
        lambda victim, outcomes: True,
        (True, True, False),
    ),
    "signal_parent": Attack(
        "have the kernel signal the parent when a pipe or a socket is written to",
        (SIGNAL_BY_DESCRIPTORS,),
        lambda victim, outcomes: not victim.signals,
        (True, True, False),
    ),
    "limit_parent": Attack(
        "take the parent's rights to open files",
        (
            "import resource\ntry:\n"
            "    resource.prlimit(@ID@, resource.RLIMIT_NOFILE, (64, 20000))\n"
            "except OSError as e:\n    print(e)",
        ),
        lambda victim, outcomes: resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64,
        (True, True, False),
    ),
    "import_tricks": Attack(
        "reach os, subprocess and libc by detours",
        (
            "import importlib\n"
            "def cat():\n"
            "    process = importlib.import_module('sub' + 'process')\n"
            "    return process.check_output(['cat', '@SECRET_FILE@']).decode()\n"
            "for run in (lambda: __import__('o' + 's').popen('cat @SECRET_FILE@').read(),\n"
            "            cat,\n"
            "            lambda: __import__('_io').open('@SECRET_FILE@').read(),\n"
            "            lambda: __import__('ctypes').CDLL(None).system(b'cat @SECRET_FILE@')):\n"
            "    try:\n        print(run())\n    except Exception as e:\n"
            "        print(type(e).__name__)",
        ),
        _prints_no_secret,
        (True, True, False),
    ),
    "new_namespace": Attack(
        "become root in a user namespace of its own",
        (
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "print('in' if libc.unshare(0x10000000) == 0 else 'refused')",
        ),
        _last_prints("refused"),
        (True, True, "ns"),
    ),
}


def make_harder() -> None:
    """Disable the features that need root (a user per program) or a new kernel (later Landlock)."""
    from gem_tools.sandbox import containment, launch

    containment._failure = lambda tried: "the programs are to run as the user"
    source = Path(launch.__file__).with_name("worker.py").read_text(encoding="utf-8")
    version = "libc.syscall(444, None, 0, 1)"  # the version of Landlock
    assert source.count(version) == 1
    code = compile(source.replace(version, f"min(1, {version})"), "worker.py", "exec", optimize=0)
    launch._source = lambda: marshal.dumps(code).hex()


def main(kind: str, folder: str, names: list[str]) -> None:
    """Run attacks and print which of them were contained."""
    from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits

    if kind == HARDER:
        make_harder()
    victim = Victim(Path(folder))
    container = {"isolation": "container", "image": container_image.IMAGE}
    options = container if kind == CONTAINER else KINDS["fallback" if kind == HARDER else kind]
    with Sandbox(SandboxLimits(**LIMITS), warm=1, **options) as sandbox:
        sandbox._plan.visible.append(str(victim.shown))
        for name in names:
            attack = ATTACKS[name]
            outcomes = [sandbox.run(victim.fill_in(code)) for code in attack.calls]
            report = {
                "name": name,
                "contained": attack.contained(victim, outcomes),
                "said": [o.stdout[:300] + o.stderr[-300:] for o in outcomes],
            }
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
