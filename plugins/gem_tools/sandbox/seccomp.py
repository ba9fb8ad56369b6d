"""Seccomp filters: BPF programs that deny system calls to sandboxed processes.

`NAMESPACED` is for bubblewrap, which already hides files, processes and the network. It denies new
namespaces, privileged kernel interfaces, taking descriptors from other processes, socket families
other than the named ones, memory that no limit counts, and locking or watching the files below
/usr, which all sandboxes and the host share. `SERVICES` is the same for a terminal session, whose
programs may also use its own loopback interface. `BARE` is for the fallback, which hides nothing.
It also denies sockets, signals, new processes, leaving the process group, changing the modes,
owners and attributes of files, and kernel objects that would outlive the process. It does not rely
on a recent Landlock: the first version controls neither signals nor truncation.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from dataclasses import dataclass

__all__ = ["BARE", "NAMESPACED", "SERVICES", "supported"]

Numbers = dict[str, tuple[int | None, int | None]]
"""The numbers of a call on (x86_64, aarch64); None if the machine does not have it."""

_KERNEL: Numbers = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "flock": (73, 32),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_BARE_ONLY: Numbers = {
    "chmod": (90, None),
    "chown": (92, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "fork": (57, None),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "ioprio_set": (251, 30),
    "kill": (62, 129),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
}
_UNREADABLE_FLAGS: Numbers = {"clone3": (435, 435)}
"""Calls with flags behind a pointer, where a filter cannot read them.

The filter reports them as missing, and libc falls back to the older call.
"""
_UNREADABLE_FILE_FLAGS: Numbers = {"openat2": (437, 437)}

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _CLONE_NEWUSER = 0x00010000, 0x10000000
_X32 = 0x40000000
_ALL_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Test:
    """A call that is denied for some values of an argument.

    The filter compares the low 32 bits; the kernel ignores the others for these arguments.
    """

    numbers: tuple[int | None, int | None]
    argument: int
    mask: int
    values: tuple[int, ...]
    denied: bool = True
    """Whether these values are denied; if False, they are the only ones allowed."""


_CLONE, _OPEN_FLAGS = (56, 220), 0o1003  # the access mode and O_TRUNC
_TRUNCATING = (0o1000, 0o0003, 0o1003)
"""O_TRUNC without write access, which the first Landlock allows, and the access mode 3, which
every Landlock allows."""
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
# setsockopt: SO_SNDBUF, SO_RCVBUF and their privileged forms, which enlarge buffers in the kernel.
_BUFFERS = _Test((54, 208), 2, _ALL_BITS, (7, 8, 32, 33))
_NAMESPACED_TESTS = (
    _Test(_CLONE, 0, _CLONE_NEWUSER, (_CLONE_NEWUSER,)),
    # AF_UNIX and AF_NETLINK. No limit counts the buffers of TCP, which grow to megabytes, and
    # AF_VSOCK and others ignore network namespaces.
    _Test(_SOCKET, 0, _ALL_BITS, (1, 16), denied=False),
    _Test(_SOCKETPAIR, 0, _ALL_BITS, (1,), denied=False),
    _BUFFERS,
)
# A terminal session runs services: AF_INET and AF_INET6 reach its own loopback interface only.
_SERVICES_TESTS = tuple(
    _Test(test.numbers, 0, _ALL_BITS, (1, 2, 10, 16), denied=False)
    if test.numbers == _SOCKET
    else test
    for test in _NAMESPACED_TESTS
)
_BARE_TESTS = (
    _Test(_CLONE, 0, _CLONE_THREAD, (_CLONE_THREAD,), denied=False),
    _Test((302, 261), 0, _ALL_BITS, (0,), denied=False),  # prlimit on other processes
    # fcntl: F_SETOWN, F_SETSIG and F_SETOWN_EX make the kernel send signals to any process.
    _Test((72, 25), 1, _ALL_BITS, (8, 10, 15)),
    # ioctl: FIOSETOWN and SIOCSPGRP do the same. FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR and
    # FS_IOC_ENABLE_VERITY change a file that is only open for reading.
    _Test((16, 29), 1, _ALL_BITS, (0x8901, 0x8902, 0x40086602, 0x401C5820, 0x40806685)),
    _Test((2, None), 1, _OPEN_FLAGS, _TRUNCATING),  # open
    _Test((257, 56), 2, _OPEN_FLAGS, _TRUNCATING),  # openat
    # A pair of datagram sockets can send to any third socket. asyncio needs a pair of stream
    # sockets, which cannot.
    _Test(_SOCKETPAIR, 0, _ALL_BITS, (1,), denied=False),  # AF_UNIX
    _Test(_SOCKETPAIR, 1, 0xF, (1,), denied=False),  # SOCK_STREAM
    _BUFFERS,
    _Test((157, 167), 0, _ALL_BITS, (1,)),  # prctl: PR_SET_PDEATHSIG, which ends it with gem
)


def supported() -> bool:
    """Whether the system call numbers of this machine are known."""
    return sys.platform == "linux" and platform.machine() in _MACHINES and sys.byteorder == "little"


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, k)


def _program(denied: Numbers, missing: Numbers, tests: tuple[_Test, ...]) -> bytes:
    """Return a filter that fails `denied` calls with EPERM and `missing` ones with ENOSYS."""
    column, machine = _MACHINES[platform.machine()]
    eperm, enosys = (_op(_RETURN, _ERRNO | number) for number in (errno.EPERM, errno.ENOSYS))
    ops = [
        _op(_LOAD, _MACHINE),
        _op(_EQUAL, machine, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if column == 0:  # x32 call numbers would bypass every test below
        ops += [_op(_AT_LEAST, _X32, 0, 1), eperm]
    for calls, result in ((denied, eperm), (missing, enosys)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                ops += [_op(_EQUAL, number, 0, 1), result]
    for test in tests:
        number = test.numbers[column]
        if number is not None:
            body = [_op(_LOAD, _FIRST_ARGUMENT + 8 * test.argument), _op(_AND, test.mask)]
            # A matching value skips one operation after the last comparison: it jumps to the
            # EPERM if it is denied, past the EPERM if it is allowed.
            body += [
                _op(_EQUAL, value, len(test.values) - n) for n, value in enumerate(test.values)
            ]
            body += [_op(_JUMP, 1), eperm] if test.denied else [eperm]
            body += [_op(_LOAD, _NUMBER)]
            ops += [_op(_EQUAL, number, 0, len(body)), *body]
    return b"".join([*ops, _op(_RETURN, _ALLOW)])


NAMESPACED = SERVICES = BARE = b""
if supported():
    NAMESPACED = _program(_KERNEL, _UNREADABLE_FLAGS, _NAMESPACED_TESTS)
    SERVICES = _program(_KERNEL, _UNREADABLE_FLAGS, _SERVICES_TESTS)
    BARE = _program(
        {**_KERNEL, **_BARE_ONLY}, {**_UNREADABLE_FLAGS, **_UNREADABLE_FILE_FLAGS}, _BARE_TESTS
    )
