"""Code: a programming task whose answer is a Python program, tested in the sandbox.

The tests of a row have one of three forms, or are a JSON string of one:

| form                                  | a test passes if                                   |
|---------------------------------------|----------------------------------------------------|
| `{"inputs": [...], "outputs": [...]}` | the program reads the input and prints the output  |
| the same with `"fn_name": "f"`        | `f(*input)` returns the output                     |
| Python code, as in HumanEval          | the code runs to its end next to the program       |

The expected outputs of the first two forms never enter the sandbox. Test code must run in the same
interpreter as the program; `trial` separates the two as far as Python allows.
"""

from __future__ import annotations

import ast
import inspect
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from gem_core.arguments import whole_number
from gem_core.env.action_format import FORMAT_ERROR
from gem_core.env.base import StepResult
from gem_core.errors import ConfigError, EnvError, PolicyError
from gem_envs.datasets.base import DatasetQuestion
from gem_envs.datasets.question import Grade
from gem_envs.datasets.trial import run_trial
from gem_tools.calls import without_thinking
from gem_tools.code_blocks import code_blocks
from gem_tools.sandbox.sandbox import Isolation, Outcome, Sandbox, SandboxLimits

__all__ = ["CodeTask", "Program", "last_code_block", "programs_of"]

_LANGUAGES = ("", "python", "py")
_KEPT_KB, _MOST_KB = 1 << 10, 64 << 10
"""The output that is read of a program, and of one whose expected output is large."""
_EXIT = "import builtins, sys\nbuiltins.exit = builtins.quit = sys.exit\n"
"""Defines what Python's `site` module does, which the sandbox skips."""


@dataclass(frozen=True, slots=True)
class Program:
    """One test as a program, with its expected output."""

    source: str
    expected: str
    mark: str = ""
    """If set, only the last line counts: this mark, which no program can guess, and then JSON."""

    def passes(self, outcome: Outcome) -> bool:
        """Whether the program exited normally and printed the expected output."""
        if outcome.end != "ok":
            return False
        if not self.mark:
            return _lines(outcome.stdout) == _lines(self.expected)
        last = outcome.stdout.rstrip().rpartition("\n")[2]
        return last.startswith(self.mark) and _same_json(
            last.removeprefix(self.mark), self.expected
        )


class CodeTask(DatasetQuestion):
    """Programming task: a reward of 1 for a program that passes every test, otherwise 0.

    An answer without a code block gives -0.1 and ends the episode. Tests stop at the first failure;
    `info` has `tests_passed` and `tests_run`. If a row has more than `max_tests` tests, those with
    the longest inputs are run.
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
        """Load the dataset.

        `entry_key` is the column with the name of the function that the test code checks.
        `preamble_key` is a column with code to insert before the program, such as the imports and
        helpers of HumanEval's prompts.
        """
        super().__init__(dataset, split, subset, question_key, test_key, max_turns)
        self.entry_key, self.preamble_key = entry_key, preamble_key
        self.max_tests = whole_number("max_tests", max_tests, 1)
        self.test_seconds = whole_number("test_seconds", test_seconds, 1)
        if isolation not in get_args(Isolation):
            allowed = ", ".join(map(repr, get_args(Isolation)))
            raise ConfigError(f"isolation must be one of {allowed}; got {isolation!r}")
        self.isolation: Isolation = isolation

    def pose(self, index: int) -> str:
        return f"{super().pose(index)}\n\nAnswer with one block of Python code: ```python ... ```"

    def on_step(self, action: str) -> StepResult:
        if last_code_block(action) is None:
            feedback = "There is no ```python block in the answer."
            return feedback, FORMAT_ERROR, True, False, {"success": False, "format_error": True}
        return super().on_step(action)

    def grade(self, answer: str) -> Grade:
        program = last_code_block(answer) or ""
        if self.preamble_key is not None:
            program = f"{self.row[self.preamble_key]}\n\n{program}"
        entry = str(self.row[self.entry_key]) if self.entry_key is not None else None
        programs = programs_of(program, self.row[self.answer_key], entry, self.max_tests)
        if not programs:
            raise EnvError(
                f"a row of the dataset {self.source[0]!r} has no tests: its column "
                f"{self.answer_key!r} is {self.row[self.answer_key]!r:.100}; expected inputs and "
                "outputs, or Python code; add tests or remove the row"
            )
        for passed, test in enumerate(programs):
            sandbox = _sandbox(self.test_seconds, self.isolation, _output_kb(test.expected))
            outcome = sandbox.run(test.source)
            if not test.passes(outcome):
                feedback = f"Test {passed + 1} of {len(programs)} fails: {_reason(outcome)}."
                return Grade(0.0, feedback, {"tests_passed": passed, "tests_run": passed + 1})
        return Grade(1.0, info={"tests_passed": len(programs), "tests_run": len(programs)})

    def expert(self) -> Iterator[str]:
        """Yield the row's `solution`, or the `prompt` and `canonical_solution` of HumanEval."""
        row = self.row
        if "solution" in row:
            program = str(row["solution"])
        elif "canonical_solution" in row:
            program = f"{row['prompt']}{row['canonical_solution']}"
        else:
            columns = ", ".join(sorted(row))
            raise PolicyError(
                f"the dataset of this task has no solution column; its columns: {columns}"
            )
        yield f"```python\n{program}\n```"

    def sample_action(self) -> str:
        return f"```python\nprint({self.action_rng.randint(0, 9)})\n```"


def last_code_block(text: str) -> str | None:
    """Return the last code block after the thinking that is Python or unmarked, or None."""
    blocks = code_blocks(without_thinking(text))
    return next((body for name, body in reversed(blocks) if name.lower() in _LANGUAGES), None)


def programs_of(program: str, tests: Any, entry: str | None, limit: int) -> list[Program]:
    """Convert the tests of a row to at most `limit` programs; none if the row has no tests."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("{", "["):
        tests = json.loads(tests)
    if not (tests.strip() if isinstance(tests, str) else tests):
        return []
    if isinstance(tests, str):
        if entry is None and _defines_check_only(tests):
            raise EnvError(
                "the tests of a row define check() and do not call it; pass entry_key, the column "
                "with the name of the function to check"
            )
        mark = secrets.token_hex(16)
        args = (mark, program, f"{tests}\ncheck({entry})" if entry else tests, entry)
        trial = inspect.getsource(run_trial)
        text = f"from __future__ import annotations\n{trial}\nrun_trial(*{args!r})"
        return [Program(f"{_EXIT}exec({text!r}, {{}})", "", mark)]
    if isinstance(tests, Mapping):
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
        function = tests.get("fn_name") or entry
    else:
        pairs = [(test["input"], test["output"]) for test in tests]
        function = entry or next((test["fn_name"] for test in tests if test.get("fn_name")), None)
    if len(pairs) > limit:
        pairs = sorted(pairs, key=lambda pair: len(str(pair[0])), reverse=True)[:limit]
    return [
        _call(program, function, *pair) if function else _stdin(program, *pair) for pair in pairs
    ]


def _stdin(program: str, test_input: Any, expected: Any) -> Program:
    """Test what a program prints. stdin is a file, which input(), sys.stdin and open(0) read."""
    source = (
        f"{_EXIT}import os, tempfile\n"
        "stdin = tempfile.TemporaryFile()\n"
        f"stdin.write({_text(test_input).encode()!r})\n"
        "stdin.seek(0)\n"
        "os.dup2(stdin.fileno(), 0)\n"
        "sys.stdin = open(0, encoding='utf-8', closefd=False)\n"
        f"exec(compile({program!r}, 'program.py', 'exec'), {{'__name__': '__main__'}})\n"
    )
    return Program(source, _text(expected))


def _call(program: str, function: str, test_input: Any, expected: Any) -> Program:
    """Test the result of a function.

    The result is printed after a random mark and compared as JSON: a tuple equals a list, and 2.0
    equals 2, but True does not equal 1.
    """
    mark = secrets.token_hex(16)
    arguments = test_input if isinstance(test_input, list) else [test_input]
    result = f"names[{function!r}](*json.loads({json.dumps(arguments)!r}))"
    source = (
        f"{_EXIT}names = {{'__name__': 'program'}}\n"
        f"exec(compile({program!r}, 'program.py', 'exec'), names)\n"
        "import json\n"
        f"print('\\n' + {mark!r} + json.dumps({result}))"  # on its own line
    )
    return Program(source, json.dumps(expected), mark)


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    """Split into lines without trailing whitespace and surrounding empty lines."""
    return [line.rstrip() for line in text.strip().splitlines()]


def _defines_check_only(tests: str) -> bool:
    """Whether test code defines `check` and does not call it outside of a definition."""
    try:
        body = ast.parse(tests).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    called = (n for line in body if not isinstance(line, definitions) for n in ast.walk(line))
    return any(getattr(line, "name", "") == "check" for line in body) and not any(
        isinstance(node, ast.Name) and node.id == "check" for node in called
    )


def _same_json(result: str, expected: str) -> bool:
    """Whether two JSON texts have the same value; NaN equals NaN."""
    if len(result) > 2 * len(expected) + 1000:  # the same value is not so much longer
        return False
    try:
        return result == expected or _canonical(result) == _canonical(expected)
    except (ValueError, RecursionError):  # the program decides what it prints
        return False


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def _reason(outcome: Outcome) -> str:
    if outcome.end == "output" or (outcome.end == "ok" and outcome.cut):
        return "it printed too much"
    if outcome.end == "ok":
        return "the output is not the expected one"
    if outcome.end == "error":
        last = outcome.stderr.strip().rpartition("\n")[2][:200]
        return last or f"the program ended with status {outcome.status}"
    return "it took too long" if outcome.end == "time" else "it was killed"


def _output_kb(expected: str) -> int:
    """Return a limit of at least twice the expected output: one of few, each has a sandbox."""
    size = _KEPT_KB
    while size < _MOST_KB and size << 10 < 8 * len(expected):  # up to 4 bytes each
        size *= 4
    return size


@cache
def _sandbox(seconds: int, isolation: Isolation, output_kb: int) -> Sandbox:
    """Return the sandbox shared by all environments with the same limits."""
    limits = SandboxLimits(seconds=float(seconds), output_kb=output_kb)
    return Sandbox(limits, isolation=isolation)
