"""Worker: the program inside the sandbox. It gives its rights away, waits for one job, runs it, and ends.

Never imported by gem: `launch.py` hands its code to another interpreter, where only the standard library is.
"""

from __future__ import annotations

import os
import resource
import struct
import sys

TYPE_CHECKING = False  # typing, json and re would take longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

NAME = "<python>"
"""What tracebacks call the model's code."""


def give_up_rights(asked: dict[str, Any]) -> list[str]:
    """Sets the limits and leaves what can be left; the names of the parts that are in force."""
    done = []
    for name, value in asked["limits"].items():
        _, most = resource.getrlimit(getattr(resource, name))
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(getattr(resource, name), (value, value))
    if asked.get("uid"):
        os.setgroups([])
        os.setresgid(asked["uid"], asked["uid"], asked["uid"])
        os.setresuid(asked["uid"], asked["uid"], asked["uid"])
        done.append("uid")
    if asked.get("landlock") or asked.get("seccomp"):
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(
            1, 9, 0, 0, 0
        )  # PR_SET_PDEATHSIG, SIGKILL: nothing is left behind where gem itself dies
        if (
            libc.prctl(38, 1, 0, 0, 0) == 0
        ):  # PR_SET_NO_NEW_PRIVS, without which neither of the two is granted
            libc.capset(
                struct.pack("<II", 0x20080522, 0), bytes(24)
            )  # root without capabilities, where it is root
            if asked.get("landlock") and hide_files(ctypes, libc, asked["landlock"]):
                done.append("landlock")
            if asked.get("seccomp") and refuse_calls(ctypes, libc, bytes.fromhex(asked["seccomp"])):
                done.append("seccomp")
    return done


def hide_files(ctypes: Any, libc: Any, paths: dict[str, list[str]]) -> bool:
    """Landlock: only these paths may be opened from now on."""
    version = libc.syscall(444, None, 0, 1)
    if version < 1:
        return False
    everything = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    of_files = everything & (
        0b111 | 1 << 14 | 1 << 15
    )  # execute, write, read, truncate, ioctl: what a file can be asked for
    network, scopes = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    words = struct.pack("<QQQ", everything, network, scopes)[
        : 8 + 8 * (version >= 4) + 8 * (version >= 6)
    ]
    rules = libc.syscall(444, words, len(words), 0)
    if rules < 0:
        return False
    for kind, rights in (("read", 0b1101), ("write", everything)):
        for path in paths[kind]:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # what is not there need not be shown
            allowed = rights if os.path.isdir(path) else rights & of_files
            libc.syscall(445, rules, 1, struct.pack("<Qi", allowed, place), 0)
            os.close(place)
    held = libc.syscall(446, rules, 0) == 0
    os.close(rules)
    return bool(held)


def refuse_calls(ctypes: Any, libc: Any, program: bytes) -> bool:
    """Seccomp: the system calls in the filter are refused from now on."""
    body = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HxxxxxxQ", len(program) // 8, ctypes.addressof(body))
    return bool(libc.prctl(22, 2, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0)


def read_exactly(size: int) -> bytes:
    """So many bytes of the job; an end before that means nobody wants this worker."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def run(code: str, names: dict[str, Any], echo: bool) -> int:
    """Runs the model's code as a program of its own; the exit status."""
    try:
        if echo:
            import ast

            tree = ast.parse(code, NAME)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, NAME, "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), NAME, "eval"), names)
                if value is not None:
                    sys.stdout.write(f"{value!r}\n")
        else:
            exec(compile(code, NAME, "exec"), names)
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


def restore(state: bytes, names: dict[str, Any]) -> list[str]:
    """Brings names back from earlier calls: definitions and imports as source, values by pickle."""
    import contextlib
    import pickle

    definitions, values = pickle.loads(state) if state else ([], {})
    for source in definitions:
        with contextlib.suppress(
            Exception
        ):  # it was fine when it was written; the code will say what it misses
            exec(compile(source, "<earlier>", "exec"), names)
    for name, value in values.items():
        with contextlib.suppress(Exception):  # the name stays unknown, which the code will be told
            names[name] = pickle.loads(value)
    return list(definitions)


def keep(code: str, definitions: list[str], names: dict[str, Any]) -> tuple[bytes, list[str]]:
    """The names as bytes for a later call, and those that cannot be kept."""
    import ast
    import pickle
    import types

    lost, values = [], {}
    for node in ast.parse(code).body:
        if isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        ):
            source = ast.unparse(node)
            if source not in definitions:
                definitions.append(source)
    for name, value in names.items():
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if (
            isinstance(value, (type, types.FunctionType))
            and value.__module__ == "__main__"
            and value.__name__ == name
        ):
            continue  # comes back with its definition
        try:
            values[name] = pickle.dumps(value)
        except Exception:  # noqa: BLE001 - said in the report
            lost.append(name)
    return pickle.dumps((definitions, values)), lost


def main() -> None:
    """One job."""
    asked = eval(sys.argv[1])  # what gem wrote, before the model has said anything
    report = asked["report"]
    os.set_inheritable(report, False)
    sys.argv, sys.path = [NAME], [p for p in sys.path if p] + asked["path"]
    for module in asked["preload"]:
        __import__(module)
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # what was printed before a limit struck is worth showing
    done = give_up_rights(asked)
    exec(
        compile("x = f'{1 + 1}'", NAME, "exec"), {}
    )  # the first time costs 2 ms, which nobody waits for here
    os.write(report, (",".join(done) + "\n").encode())
    size, state_size, cpu, flags = struct.unpack("<IIII", read_exactly(16))
    code = read_exactly(size).decode("utf-8", "surrogatepass")
    state = read_exactly(state_size)
    used = int(sum(os.times()[:4])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu, used + cpu))
    program = type(sys)("__main__")
    program.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    names = program.__dict__
    worker = os.getpid()
    keeping, echo = bool(flags & 1), bool(flags & 2)
    definitions = restore(state, names) if keeping else []
    status = run(code, names, echo)
    if os.getpid() != worker:  # a fork of the model's came back here
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
        except Exception:  # noqa: BLE001 - the model closed it
            continue
    lost, kept = b"", b""
    if keeping and status == 0:
        kept, names_lost = keep(code, definitions, names)
        lost = ",".join(names_lost).encode()
    body = struct.pack("<4sIII", b"done", status, len(lost), len(kept)) + lost + kept
    while body:
        body = body[os.write(report, body) :]
    os._exit(status)


if __name__ == "__main__":
    main()
