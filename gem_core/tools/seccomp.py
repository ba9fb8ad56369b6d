"""Seccomp program: what the kernel refuses a process to ask for, as the bytes of a BPF filter.

`NAMESPACED` is laid over bubblewrap, which already hides files, processes and the network: it closes the ways to make new
namespaces and to reach into the kernel. `BARE` is for the fallback, where nothing is hidden: it also refuses sockets, signals,
new processes, leaving the process group, and whatever would outlive the process inside the kernel.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

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
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchownat": (260, 54),
    "fork": (57, None),
    "ioprio_set": (251, 30),
    "kill": (62, 129),
    "lchown": (94, None),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setxattr": (188, 5),
    "shmget": (29, 194),
    "socket": (41, 198),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vfork": (58, None),
}
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _CLONE_NEWUSER = 0x00010000, 0x10000000
_X32 = 0x40000000


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return sys.platform == "linux" and platform.machine() in _MACHINES and sys.byteorder == "little"


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, k)


def _program(refused: Numbers, *, processes: bool, other_limits: bool) -> bytes:
    """Refuses calls with EPERM; `processes`: whether clone may make more than threads; `other_limits`: prlimit on others."""
    column, machine = _MACHINES[platform.machine()]
    eperm = _op(_RETURN, _ERRNO | errno.EPERM)
    ops = [_op(_LOAD, _MACHINE), _op(_EQUAL, machine, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    if column == 0:  # the x32 numbering would be a way around every test below
        ops += [_op(_AT_LEAST, _X32, 0, 1), eperm]
    for numbers in refused.values():
        number = numbers[column]
        if number is not None:
            ops += [_op(_EQUAL, number, 0, 1), eperm]
    clone, clone3, prlimit = _CLONE[column], _CLONE3[column], _PRLIMIT[column]
    # clone3 has its flags behind a pointer, which a filter cannot follow; told that it is missing, libc uses clone
    ops += [_op(_EQUAL, clone3, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    thread_or_more = _op(_ANY_BIT, _CLONE_NEWUSER, 0, 1) if processes else _op(_ANY_BIT, _CLONE_THREAD, 1, 0)
    ops += [_op(_EQUAL, clone, 0, 4), _op(_LOAD, _FIRST_ARGUMENT), thread_or_more, eperm, _op(_LOAD, _NUMBER)]
    if not other_limits:
        ops += [_op(_EQUAL, prlimit, 0, 4), _op(_LOAD, _FIRST_ARGUMENT), _op(_EQUAL, 0, 1, 0), eperm, _op(_LOAD, _NUMBER)]
    return b"".join([*ops, _op(_RETURN, _ALLOW)])


NAMESPACED = _program(_KERNEL, processes=True, other_limits=True) if supported() else b""
BARE = _program({**_KERNEL, **_OTHERS}, processes=False, other_limits=False) if supported() else b""
