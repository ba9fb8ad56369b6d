"""Terminal: tasks in a sandboxed shell, scored by tests on the resulting files.

Each action is a shell command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError
from gem_envs.agents.terminal_tasks import KINDS, draw_task
from gem_tools.sandbox.shell import Shell

__all__ = ["Terminal"]

_BLOCK = re.compile(
    r"```[ \t]*(?:bash|sh|shell|console)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE
)
_RANDOM_COMMANDS = (
    "ls -R",
    "pwd",
    "cat *",
    "head -n 5 */*",
    "wc -l *",
    "cd ..",
    "echo 42 > answer",
    "submit",
)


class Terminal(Env):
    """A shell task; the reward is 1 if every test passes at `submit` or at the last turn, else 0.

    Files and the working directory persist between commands; nothing else does. The last `info` has
    `tests_passed` and `tests_run`. The option `kind` selects the kind of task.
    """

    execution = "thread"
    deterministic = False  # a command may read the clock
    option_names = frozenset({"kind"})
    action_example = "ls -l"

    def __init__(self, kind: str | None = None, max_turns: int = 15, seconds: float = 10.0) -> None:
        """Create the environment.

        `kind` is the kind of task; None draws one in every episode. `seconds` is the time limit of
        one command.
        """
        self.kind = None if kind is None else _checked_kind(kind, ConfigError)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.seconds = seconds
        _shell(seconds)  # raise now if bubblewrap is missing

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        kind = options.get("kind")
        if kind is None:
            kind = self.kind or self.rng.choice(tuple(KINDS))
        else:
            kind = _checked_kind(kind, OptionError)
        self.task = draw_task(kind, self.rng)
        self.home = _shell(self.seconds).create(self.task.files, self.task.setup)
        observation = (
            f"You are at a bash prompt in your home folder, ~. {self.task.instruction}\n"
            "Each of your messages is one command, or a short script, that is run as it is; "
            "the folder you are in and the files below ~ are kept from one to the next, "
            "shell variables and running programs are not. There is no network. "
            "When you are done, write submit. "
            f"You have {self.max_turns} turns, and {self.seconds:g} s for each command."
        )
        return observation, {"kind": kind}

    def on_step(self, action: str) -> StepResult:
        blocks = _BLOCK.findall(action)
        command = (blocks[-1] if blocks else action).strip()
        if command == "submit":
            return self._score("", truncated=False)
        result = _shell(self.seconds).run(command, self.home)
        self.home = result.home
        output = result.output.rstrip("\n") or "(no output)"
        if result.status:
            output += f"\n(status {result.status})"
        if self.turn + 1 >= self.max_turns:
            return self._score(
                f"{output}\nThat was the last of {self.max_turns} turns.\n", truncated=True
            )
        observation = f"{output}\n~/{self.home.cwd}$".replace("~/.$", "~$").replace("~/$", "~$")
        return observation, 0.0, False, False, {"status": result.status}

    def sample_action(self) -> str:
        return self.action_rng.choice(_RANDOM_COMMANDS)

    def expert(self) -> Iterator[str]:
        """List the files, run the task's reference solution, and submit."""
        yield "ls -R"
        yield self.task.solution
        yield "submit"

    def _score(self, output: str, truncated: bool) -> StepResult:
        passed = _shell(self.seconds).check(self.task.tests, self.home)
        solved = all(passed)
        observation = f"{output}{sum(passed)} of {len(passed)} tests pass."
        info = {"success": solved, "tests_passed": sum(passed), "tests_run": len(passed)}
        return observation, float(solved), not truncated, truncated, info


def _checked_kind(kind: object, error: type[ConfigError | OptionError]) -> str:
    if kind in KINDS:
        return str(kind)
    raise error(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")


@cache
def _shell(seconds: float) -> Shell:
    """Return the shell that all environments with the same time limit share."""
    return Shell(seconds)
