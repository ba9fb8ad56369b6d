"""Trial: test code that runs next to the program it tests, as in HumanEval.

The tests call functions of the program with any object and compare any result, so both run in one
interpreter. A trial separates them as far as Python allows:

- The program runs in its own thread, with no frame of the tests or of gem below it.
- The tests use builtins copied before the program ran.
- A function must not return an instance of the program's own class that overrides comparison.
- An audit hook refuses what finds the tests in memory: `gc`, `ctypes`, tracing and audit hooks.

Not prevented: a program whose objects have methods that Python calls during a test, and that reads
the frames of the tests there, or a program that changes a library that the tests use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["run_trial"]


def run_trial(mark: str, program: str, tests: str, entry: str | None) -> None:
    """Run a program and its tests, and print the mark if the tests run to their end.

    The environment sends the source of this function to the sandbox. If the tests raise, it prints
    only the type of the error to stderr, because the message may contain the expected result.

    Only the main thread knows the mark. A second thread runs the tests, a third the program and its
    functions.
    """
    import _queue
    import _thread
    import builtins
    import os
    import sys
    import types

    write, execute, translate, own_builtins = os.write, exec, compile, dict(vars(builtins))
    jobs: Any = _queue.SimpleQueue()
    results: Any = _queue.SimpleQueue()
    comparisons = {
        f"__{name}__"
        for name in ["eq", "ne", "lt", "le", "gt", "ge", "sub", "rsub", "abs", "round", "contains"]
    }
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE, which every class of a program has
    error_types: list[str] = []
    done = _thread.allocate_lock()
    loop = """
while True:
    function, args, keywords = get()
    try:
        result = True, function(*args, **keywords)
    except BaseException as error:
        result = False, error
    put(result)
"""

    refuse = """
def refuse(event, args):
    if event.startswith((
        "ctypes.", "gc.", "sys._current_", "sys.addaudithook", "sys.monitoring.", "sys.setprofile",
        "sys.settrace",
    )):
        raise RuntimeError(event + " is not available to tested programs")
"""
    # The hook has names and builtins of its own, because its frame is in the traceback.
    own_names: dict[str, Any] = {"__builtins__": {"RuntimeError": RuntimeError}}
    execute(translate(refuse, "refuse.py", "exec", dont_inherit=True), own_names)
    sys.addaudithook(own_names.pop("refuse"))
    for module in [*sys.modules, "_ctypes", "ctypes"]:
        if module.partition(".")[0] in ("_ctypes", "ctypes"):
            sys.modules[module] = None  # type: ignore[assignment]

    def in_program_thread(function: Any, *args: Any, **keywords: Any) -> Any:
        if _thread.get_ident() == thread:
            return function(*args, **keywords)
        jobs.put((function, args, keywords))
        returned, result = results.get()
        if returned is True:
            return result
        raise result

    def checked(value: Any) -> Any:
        """Reject an instance of the program's own class that overrides comparison."""
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict):
            for part in (*value.keys(), *value.values()) if kind is dict else value:
                checked(part)
        for base in type.__dict__["__mro__"].__get__(kind):
            members = type.__dict__["__dict__"].__get__(base)
            if not type.__dict__["__flags__"].__get__(base) & heap_type:
                continue  # a class of the interpreter; NoneType compares, from Python 3.13
            home = sys.modules.get(str(members.get("__module__", "builtins")))
            if comparisons & members.keys() and getattr(home, base.__name__, None) is not base:
                raise TypeError("the result's class overrides comparison")
        return value

    def guarded(function: Any) -> Any:
        return lambda *args, **keywords: checked(in_program_thread(function, *args, **keywords))

    def run_tests() -> None:
        names: dict[str, Any] = {"__name__": "program"}
        try:
            code = translate(program, "program.py", "exec", dont_inherit=True)
            in_program_thread(execute, code, names)
            visible = {
                n: guarded(v) if n == entry or type(v) is types.FunctionType else v
                for n, v in names.items()
            }
            execute(
                translate(tests, "tests.py", "exec", dont_inherit=True),
                {**visible, "__builtins__": own_builtins},
            )
            in_program_thread(sys.stdout.flush)
            error_types.append("")
        except BaseException as error:  # noqa: BLE001 - reported by its type
            error_types.append(type(error).__name__)
        finally:
            done.release()

    done.acquire()
    thread = _thread.start_new_thread(
        execute,
        (
            translate(loop, "calls.py", "exec", dont_inherit=True),
            {"get": jobs.get, "put": results.put},
        ),
    )
    _thread.start_new_thread(run_tests, ())
    done.acquire()
    if error_types != [""]:
        write(2, f"\n{error_types[0][:100]}\n".encode("utf-8", "replace"))
        raise SystemExit(1)
    write(1, f"\n{mark}\n".encode())
