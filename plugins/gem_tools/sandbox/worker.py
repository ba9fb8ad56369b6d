"""Worker: the program in the sandbox that drops its rights, runs one job, and exits.

gem never imports it: `launch.py` passes its code to another interpreter, which has only the
standard library.
"""

from __future__ import annotations

import os
import resource
import struct
import sys

TYPE_CHECKING = False  # importing typing, json and re would take longer than the rest
if TYPE_CHECKING:
    from typing import Any

NAME = "<python>"
"""The file name of the model's code in tracebacks."""


def drop_rights(settings: dict[str, Any]) -> list[str]:
    """Set the limits and filters; return the names of the filters that are in force."""
    done = []
    for name, value in settings["limits"].items():
        _, maximum = resource.getrlimit(getattr(resource, name))
        value = value if maximum == resource.RLIM_INFINITY else min(value, maximum)
        resource.setrlimit(getattr(resource, name), (value, value))
    uid = settings.get("uid")
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        done.append("uid")
    landlock, seccomp = settings.get("landlock"), settings.get("seccomp")
    if landlock or seccomp:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: die with gem
        if libc.prctl(38, 1, 0, 0, 0) == 0:  # PR_SET_NO_NEW_PRIVS, which both filters require
            libc.capset(struct.pack("<II", 0x20080522, 0), bytes(24))  # drop root's capabilities
            if landlock and restrict_files(ctypes, libc, landlock):
                done.append("landlock")
            if seccomp and restrict_calls(ctypes, libc, bytes.fromhex(seccomp)):
                done.append("seccomp")
    return done


def restrict_files(ctypes: Any, libc: Any, paths: dict[str, list[str]]) -> bool:
    """Allow only these paths, with Landlock."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return False
    everything = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    # The rights that apply to files: execute, write, read, truncate, ioctl.
    of_files = everything & (0b111 | 1 << 14 | 1 << 15)
    network, scopes = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    size = 8 + 8 * (version >= 4) + 8 * (version >= 6)
    words = struct.pack("<QQQ", everything, network, scopes)[:size]
    rules = libc.syscall(444, words, len(words), 0)
    if rules < 0:
        return False
    for kind, rights in (("read", 0b1101), ("write", everything)):
        for path in paths[kind]:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # the path does not exist
            allowed = rights if os.path.isdir(path) else rights & of_files
            libc.syscall(445, rules, 1, struct.pack("<Qi", allowed, fd), 0)
            os.close(fd)
    in_force = libc.syscall(446, rules, 0) == 0
    os.close(rules)
    return bool(in_force)


def restrict_calls(ctypes: Any, libc: Any, program: bytes) -> bool:
    """Install a seccomp filter."""
    body = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(body))
    return bool(libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0)


def read_exactly(size: int) -> bytes:
    """Read `size` bytes of the job; exit if the stream ends, because the worker is not needed."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def run(code: str, names: dict[str, Any], echo: bool) -> int:
    """Run the model's code and return the exit status."""
    try:
        if echo:
            import ast

            tree = ast.parse(code, NAME)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, NAME, "exec", dont_inherit=True), names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, NAME, "eval", dont_inherit=True), names)
                if value is not None:
                    sys.stdout.write(f"{value!r}\n")
        else:
            exec(compile(code, NAME, "exec", dont_inherit=True), names)
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - shown to the model
        import linecache
        import traceback

        linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
            frames = frames.tb_next
        if isinstance(error, SyntaxError):
            frames = None
        sys.stdout.flush()
        traceback.print_exception(type(error), error.with_traceback(frames), frames, limit=-20)
        return 1


def supervise() -> None:
    """Return in a child process; this one, the first of a container, ends with it or with gem.

    The end of the first process ends all others. gem holds the other end of the standard input.
    """
    import select

    child = os.fork()
    if child == 0:
        return
    watch = select.poll()
    watch.register(0, 0)  # without events to wait for, only its end is reported
    watch.register(os.pidfd_open(child), select.POLLIN)  # type: ignore[attr-defined,unused-ignore]
    while not watch.poll(1000):
        try:
            while os.waitpid(-1, os.WNOHANG)[0] not in (0, child):
                pass  # an orphan of the program
        except ChildProcessError:
            break
    pid, status = os.waitpid(child, os.WNOHANG)
    os._exit(128 + (status & 0x7F) if status & 0x7F else status >> 8 if pid else 1)


def main() -> None:
    """Run one job."""
    settings = eval(sys.argv[1])  # written by gem, not by the model
    report = settings["report"]
    if settings.get("supervise"):
        os.chmod("/tmp", 0o1777)  # an engine may copy the mode of the image's folder
        supervise()
        report = os.open(report, os.O_WRONLY)
    os.set_inheritable(report, False)
    sys.argv, sys.path = [NAME], [p for p in sys.path if p] + settings["path"]
    for module in settings["preload"]:
        __import__(module)
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        # Line buffering keeps the output of a program that is killed at a limit.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    filters = drop_rights(settings)
    # The first exec takes 2 ms; do it before the job arrives.
    exec(compile("x = f'{1 + 1}'", NAME, "exec"), {})
    os.write(report, (",".join(filters) + "\n").encode())
    size, state_size, cpu, flags = struct.unpack("<IIII", read_exactly(16))
    code = read_exactly(size).decode("utf-8", "surrogatepass")
    state = read_exactly(state_size)
    if settings.get("supervise"):  # the input stays open, as the sign of life of gem
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    used = int(sum(os.times()[:4])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu, used + cpu))
    program = type(sys)("__main__")
    program.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    names = program.__dict__
    worker = os.getpid()
    keeping, echo = bool(flags & 1), bool(flags & 2)
    if keeping:
        kept_names = sys.modules["gem_names"] = type(sys)("gem_names")
        exec(compile(settings["names"], "names.py", "exec"), vars(kept_names))
        kept_names.restore(state, names)
    status = run(code, names, echo)
    if os.getpid() != worker:  # the model's code forked, and the child returned
        sys.stdout.flush()
        os._exit(status)
    if "threading" in sys.modules:
        import threading

        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - the model's code closed it
            continue
    lost, kept = b"", b""
    if keeping and status == 0:
        kept, lost_names = kept_names.keep(names)
        lost = ",".join(name[:100] for name in lost_names[:100]).encode("utf-8", "replace")
    body = struct.pack("<4sIII", b"done", status, len(lost), len(kept)) + lost + kept
    while body:
        body = body[os.write(report, body) :]
    os._exit(status)


if __name__ == "__main__":
    main()
