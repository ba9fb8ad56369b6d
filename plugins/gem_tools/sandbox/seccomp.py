"""Seccomp program: what the kernel refuses a process to ask for, as the bytes of a BPF filter.

`NAMESPACED` is laid over bubblewrap, which already hides files, processes and the network: it closes the ways to make new
namespaces and to reach into the kernel. `BARE` is for the fallback, where nothing is hidden: it also refuses sockets, signals,
new processes, leaving the process group, changing modes, owners and attributes of files, and whatever would outlive the process
inside the kernel. It does not count on a new Landlock: the first one knows neither signals nor the shortening of files.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from dataclasses import dataclass

__all__ = ["BARE", "NAMESPACED", "supported"]

Numbers = dict[str, tuple[int | None, int | None]]
"""(x86_64, aarch64); None where the machine does not have the call."""

_KERNEL: Numbers = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "setns": (308, 268),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_OTHERS: Numbers = {
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
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "truncate": (76, 45),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
}
_BEHIND_POINTERS: Numbers = {"clone3": (435, 435)}
"""Calls whose flags a filter cannot read. They are said to be missing, and libc uses the older call."""
_BEHIND_POINTERS_OF_FILES: Numbers = {"openat2": (437, 437)}

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _AND, _JUMP, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _CLONE_NEWUSER = 0x00010000, 0x10000000
_X32 = 0x40000000
_WHOLE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Test:
    """A call that is refused for some values of an argument. The low 32 bits are compared: the kernel looks at no others."""

    numbers: tuple[int | None, int | None]
    argument: int
    mask: int
    values: tuple[int, ...]
    refused: bool = True
    """Whether these values are the ones refused, or the only ones allowed."""


_CLONE, _OPEN_FLAGS = (56, 220), 0o1003  # the access mode, and O_TRUNC
_EMPTYING = (0o1000, 0o0003, 0o1003)
"""O_TRUNC without a right to write, which the first Landlock lets pass, and the access mode 3, which every Landlock lets pass."""
_SOCKETPAIR = (53, 199)
_PROCESSES_ALLOWED = (_Test(_CLONE, 0, _CLONE_NEWUSER, (_CLONE_NEWUSER,)),)
_ALONE = (
    _Test(_CLONE, 0, _CLONE_THREAD, (_CLONE_THREAD,), refused=False),
    _Test((302, 261), 0, _WHOLE, (0,), refused=False),  # prlimit on others
    _Test(
        (72, 25), 1, _WHOLE, (8, 10, 15)
    ),  # fcntl: F_SETOWN, F_SETSIG, F_SETOWN_EX have the kernel send signals to anybody
    # ioctl: FIOSETOWN and SIOCSPGRP do the same; FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY change a file that is
    # open for reading only
    _Test((16, 29), 1, _WHOLE, (0x8901, 0x8902, 0x40086602, 0x401C5820, 0x40806685)),
    _Test((2, None), 1, _OPEN_FLAGS, _EMPTYING),  # open
    _Test((257, 56), 2, _OPEN_FLAGS, _EMPTYING),  # openat
    # a pair of datagram sockets can send to any third; asyncio needs a pair of streams, which cannot
    _Test(_SOCKETPAIR, 0, _WHOLE, (1,), refused=False),  # AF_UNIX
    _Test(_SOCKETPAIR, 1, 0xF, (1,), refused=False),  # SOCK_STREAM
)


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return sys.platform == "linux" and platform.machine() in _MACHINES and sys.byteorder == "little"


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, k)


def _program(refused: Numbers, missing: Numbers, tests: tuple[_Test, ...]) -> bytes:
    """Refuses calls with EPERM; those that are to be `missing`, with ENOSYS."""
    column, machine = _MACHINES[platform.machine()]
    eperm, enosys = (_op(_RETURN, _ERRNO | number) for number in (errno.EPERM, errno.ENOSYS))
    ops = [
        _op(_LOAD, _MACHINE),
        _op(_EQUAL, machine, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
    ]
    if column == 0:  # the x32 numbering would be a way around every test below
        ops += [_op(_AT_LEAST, _X32, 0, 1), eperm]
    for calls, answer in ((refused, eperm), (missing, enosys)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                ops += [_op(_EQUAL, number, 0, 1), answer]
    for test in tests:
        number = test.numbers[column]
        if number is not None:
            body = [_op(_LOAD, _FIRST_ARGUMENT + 8 * test.argument), _op(_AND, test.mask)]
            # a value that is found leads over one operation after the last comparison: to the refusal, or past it
            body += [
                _op(_EQUAL, value, len(test.values) - n) for n, value in enumerate(test.values)
            ]
            body += [_op(_JUMP, 1), eperm] if test.refused else [eperm]
            body += [_op(_LOAD, _NUMBER)]
            ops += [_op(_EQUAL, number, 0, len(body)), *body]
    return b"".join([*ops, _op(_RETURN, _ALLOW)])


NAMESPACED = _program(_KERNEL, _BEHIND_POINTERS, _PROCESSES_ALLOWED) if supported() else b""
BARE = (
    _program({**_KERNEL, **_OTHERS}, {**_BEHIND_POINTERS, **_BEHIND_POINTERS_OF_FILES}, _ALONE)
    if supported()
    else b""
)
