"""Code: a programming task; the answer is a Python program that is run against tests in the sandbox.

A row's tests have one of three forms (or are a JSON string of one):

| form                                                  | how a test is run                                              |
|-------------------------------------------------------|----------------------------------------------------------------|
| `{"inputs": [...], "outputs": [...]}`                 | the program reads the input from stdin and prints the output   |
| the same with `"fn_name": "f"`                        | `f(*input)` returns the output                                 |
| Python text, such as HumanEval's `def check(f): ...`  | runs beside the program and must reach its end                 |

What the first two expect never enters the sandbox. A text has to run where the program is, and `_trial` keeps the two apart as
far as one interpreter can: the program runs in a thread of its own, below which no frame of the tests or of gem lies; the tests
have builtins that were copied before the program ran; and a function's result may not be of a class of the program's own that
says itself what it is equal, or near, to. Not stopped is a program that looks for the tests on purpose, through `gc`, `ctypes`,
`sys._current_frames` or methods that Python calls in the middle of a test, or that changes a library the tests use.
"""

from __future__ import annotations

import inspect
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.env.action_format import FORMAT_ERROR
from gem_core.env.base import StepResult
from gem_core.errors import ConfigError, PolicyError
from gem_envs.datasets.base import DatasetQuestion
from gem_envs.datasets.question import Grade
from gem_tools.sandbox.sandbox import Isolation, Outcome, Sandbox, SandboxLimits

__all__ = ["CodeTask", "Program", "last_code_block", "programs_of"]

_BLOCK = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Program:
    """One test as a program, and what it must print."""

    source: str
    expected: str
    last_line: bool = False
    """Whether only the last line of the output counts, where a mark stands in it that no program can guess."""

    def passes(self, outcome: Outcome) -> bool:
        """Whether the program ended well and printed what it should."""
        if outcome.end != "ok":
            return False
        printed = outcome.stdout.rstrip()
        return _lines(printed.rpartition("\n")[2] if self.last_line else printed) == _lines(
            self.expected
        )


class CodeTask(DatasetQuestion):
    """1 for a program that passes every test, else 0; an answer without a code block pays -0.1 and ends the episode.

    `info` has `tests_passed` and `tests_run`; tests stop at the first that fails. Of more than `max_tests` tests those with the
    longest inputs are run.
    """

    action_example = "program"

    def __init__(
        self,
        dataset: str,
        split: str | None = None,
        subset: str | None = None,
        question_key: str = "problem",
        test_key: str = "tests",
        entry_key: str | None = None,
        preamble_key: str | None = None,
        max_tests: int = 12,
        test_seconds: int = 5,
        isolation: Isolation = "auto",
        max_turns: int = 1,
    ) -> None:
        """`entry_key`: the column with the name of the function a test text checks. `preamble_key`: a column with code to put in
        front of the program, such as the imports and helpers of HumanEval's prompts."""
        super().__init__(dataset, split, subset, question_key, test_key, max_turns)
        self.entry_key, self.preamble_key = entry_key, preamble_key
        self.max_tests = whole_number("max_tests", max_tests, 1)
        self.test_seconds = whole_number("test_seconds", test_seconds, 1)
        if isolation not in ("auto", "full", "partial"):
            raise ConfigError(
                f"isolation must be 'auto', 'full' or 'partial'; given: {isolation!r}"
            )
        self.isolation: Literal["auto", "full", "partial"] = isolation

    def pose(self, index: int) -> str:
        return f"{super().pose(index)}\n\nAnswer with one block of Python code: ```python ... ```"

    def on_step(self, action: str) -> StepResult:
        if last_code_block(action) is None:
            said = "There is no ```python block in the answer."
            return said, FORMAT_ERROR, True, False, {"success": False, "format_error": True}
        return super().on_step(action)

    def grade(self, answer: str) -> Grade:
        program = last_code_block(answer) or ""
        if self.preamble_key is not None:
            program = f"{self.row[self.preamble_key]}\n\n{program}"
        entry = str(self.row[self.entry_key]) if self.entry_key is not None else None
        programs = programs_of(program, self.row[self.answer_key], entry, self.max_tests)
        sandbox = _sandbox(self.test_seconds, self.isolation)
        for passed, test in enumerate(programs):
            outcome = sandbox.run(test.source)
            if not test.passes(outcome):
                said = f"Test {passed + 1} of {len(programs)} fails: {_reason(outcome)}."
                return Grade(0.0, said, {"tests_passed": passed, "tests_run": passed + 1})
        return Grade(1.0, info={"tests_passed": len(programs), "tests_run": len(programs)})

    def expert(self) -> Iterator[str]:
        """The data set's solution: the column `solution`, or HumanEval's prompt and `canonical_solution`."""
        row = self.row
        if "solution" in row:
            program = str(row["solution"])
        elif "canonical_solution" in row:
            program = f"{row['prompt']}{row['canonical_solution']}"
        else:
            raise PolicyError(
                f"the data set of this task has no column with a solution; its columns: {', '.join(sorted(row))}"
            )
        yield f"```python\n{program}\n```"

    def sample_action(self) -> str:
        return f"```python\nprint({self.action_rng.randint(0, 9)})\n```"


def last_code_block(text: str) -> str | None:
    """The content of the last fenced block of Python, or of no named language; None where there is none."""
    blocks: list[str] = _BLOCK.findall(text)
    return blocks[-1] if blocks else None


def programs_of(program: str, tests: Any, entry: str | None, most: int) -> list[Program]:
    """The tests of a row as programs, at most so many."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("{", "["):
        tests = json.loads(tests)
    if isinstance(tests, str):
        mark = secrets.token_hex(16)
        given = (mark, program, f"{tests}\ncheck({entry})" if entry else tests, entry)
        text = (
            f"from __future__ import annotations\n{inspect.getsource(_trial)}\n_trial(*{given!r})"
        )
        source = f"exec({text!r}, {{}})"
        return [Program(source, mark, True)]
    if isinstance(tests, Mapping):
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        function = tests.get("fn_name") or entry
    else:
        pairs = [(test["input"], test["output"]) for test in tests]
        function = entry or next((test["fn_name"] for test in tests if test.get("fn_name")), None)
    if len(pairs) > most:
        pairs = sorted(pairs, key=lambda pair: len(str(pair[0])), reverse=True)[:most]
    return [
        _call(program, function, *pair) if function else _stdin(program, *pair) for pair in pairs
    ]


def _stdin(program: str, given: Any, expected: Any) -> Program:
    """The standard input is a real file, so that input(), sys.stdin.buffer and open(0) all read it."""
    source = (
        "import os, sys, tempfile\n"
        "given = tempfile.TemporaryFile()\n"
        f"given.write({_text(given).encode()!r})\n"
        "given.seek(0)\n"
        "os.dup2(given.fileno(), 0)\n"
        "sys.stdin = open(0, encoding='utf-8', closefd=False)\n"
        f"exec(compile({program!r}, 'program.py', 'exec'), {{'__name__': '__main__'}})\n"
    )
    return Program(source, _text(expected))


def _call(program: str, function: str, given: Any, expected: Any) -> Program:
    """The result is compared as JSON, so that a tuple is a list, behind a mark that only this call knows."""
    mark = secrets.token_hex(16)
    arguments = given if isinstance(given, list) else [given]
    result = f"names[{function!r}](*json.loads({json.dumps(arguments)!r}))"
    source = f"{_defined(program)}\nimport json\n{_say(f'{mark!r} + json.dumps({result})')}"
    return Program(source, mark + json.dumps(expected), True)


def _defined(program: str) -> str:
    return f"names = {{'__name__': 'program'}}\nexec(compile({program!r}, 'program.py', 'exec'), names)"


def _say(expression: str) -> str:
    """On a line of its own, whatever was printed before."""
    return f"print('\\n' + {expression})"


def _trial(mark: str, program: str, tests: str, entry: str | None) -> None:
    """Runs in the sandbox, where its text is sent: prints the mark if the tests reach their end, else the type of what they
    raised on stderr, and no more of it, since a message may say what was expected.

    This thread alone knows the mark. A second runs the tests, a third the program and its functions.
    """
    import _queue
    import _thread
    import builtins
    import os
    import sys
    import types

    write, execute, translate, own = os.write, exec, compile, dict(vars(builtins))
    jobs: Any = _queue.SimpleQueue()
    results: Any = _queue.SimpleQueue()
    judges = {
        f"__{name}__"
        for name in ["eq", "ne", "lt", "le", "gt", "ge", "sub", "rsub", "abs", "round", "contains"]
    }
    ended: list[str] = []
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

    def apart(function: Any, *args: Any, **keywords: Any) -> Any:
        """Called in the program's thread."""
        if _thread.get_ident() == thread:
            return function(*args, **keywords)
        jobs.put((function, args, keywords))
        fine, result = results.get()
        if fine is True:
            return result
        raise result

    def checked(value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple, set, frozenset, dict):
            for part in (*value.keys(), *value.values()) if kind is dict else value:
                checked(part)
        for base in type.__dict__["__mro__"].__get__(kind):
            members = type.__dict__["__dict__"].__get__(base)
            home = sys.modules.get(str(members.get("__module__", "builtins")))
            if judges & members.keys() and getattr(home, base.__name__, None) is not base:
                raise TypeError("a result says itself what it is equal to")
        return value

    def guarded(function: Any) -> Any:
        return lambda *args, **keywords: checked(apart(function, *args, **keywords))

    def attempt() -> None:
        names: dict[str, Any] = {"__name__": "program"}
        try:
            apart(execute, translate(program, "program.py", "exec", dont_inherit=True), names)
            seen = {
                n: guarded(v) if n == entry or type(v) is types.FunctionType else v
                for n, v in names.items()
            }
            execute(
                translate(tests, "tests.py", "exec", dont_inherit=True),
                {**seen, "__builtins__": own},
            )
            apart(sys.stdout.flush)
            ended.append("")
        except BaseException as error:  # noqa: BLE001 - said by its type
            ended.append(type(error).__name__)
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
    _thread.start_new_thread(attempt, ())
    done.acquire()
    if ended != [""]:
        write(2, f"\n{ended[0][:100]}\n".encode("utf-8", "replace"))
        raise SystemExit(1)
    write(1, f"\n{mark}\n".encode())


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    """Blanks at the end of a line, and lines without anything around the rest, do not count."""
    return [line.rstrip() for line in text.strip().splitlines()]


def _reason(outcome: Outcome) -> str:
    if outcome.end == "ok":
        return "the output is not the expected one"
    if outcome.end == "error":
        last = outcome.stderr.strip().rpartition("\n")[2][:200]
        return last or f"the program ended with status {outcome.status}"
    return {"time": "it took too long", "output": "it printed too much", "killed": "it was killed"}[
        outcome.end
    ]


@cache
def _sandbox(seconds: int, isolation: Literal["auto", "full", "partial"]) -> Sandbox:
    """One for all environments with the same limits."""
    return Sandbox(SandboxLimits(seconds=float(seconds)), isolation=isolation)
