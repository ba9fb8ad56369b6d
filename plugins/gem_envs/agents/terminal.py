"""Terminal: a task to be done in a shell. Each action is a command in the sandbox; tests of the files that are left decide."""

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


class Terminal(Env):
    """1 where every test of the task holds when the model says `submit`, or at the last turn; else 0.

    A command sees the files and the folder the one before left, and nothing else of it. `info` has `tests_passed` and
    `tests_run` at the end. The option `kind` names one of the kinds of tasks.
    """

    execution = "thread"
    deterministic = False  # a command may read the clock
    option_names = frozenset({"kind"})
    action_example = "ls -l"

    def __init__(self, kind: str | None = None, max_turns: int = 15, seconds: float = 10.0) -> None:
        """`kind`: one of the kinds of tasks; None draws one of all. `seconds`: the time of one command."""
        self.kind = None if kind is None else _known(kind, ConfigError)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.seconds = seconds
        _shell(seconds)  # where there is no bubblewrap, it says so now

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        kind = options.get("kind")
        kind = (
            self.kind or self.rng.choice(tuple(KINDS))
            if kind is None
            else _known(kind, OptionError)
        )
        self.task = draw_task(kind, self.rng)
        self.home = _shell(self.seconds).create(self.task.files, self.task.setup)
        said = (
            f"You are at a bash prompt in your home folder, ~. {self.task.instruction}\n"
            "Each of your messages is one command, or a short script, that is run as it is; the folder you are in and the files "
            "below ~ are kept from one to the next, shell variables and running programs are not. There is no network. When you "
            f"are done, write submit. You have {self.max_turns} turns, and {self.seconds:g} s for each command."
        )
        return said, {"kind": kind}

    def on_step(self, action: str) -> StepResult:
        blocks = _BLOCK.findall(action)
        command = (blocks[-1] if blocks else action).strip()
        if command == "submit":
            return self._score("", truncated=False)
        ran = _shell(self.seconds).run(command, self.home)
        self.home = ran.home
        shown = ran.output.rstrip("\n") or "(no output)"
        if ran.status:
            shown += f"\n(status {ran.status})"
        if self.turn + 1 >= self.max_turns:
            return self._score(
                f"{shown}\nThat was the last of {self.max_turns} turns.\n", truncated=True
            )
        return (
            f"{shown}\n~/{self.home.cwd}$".replace("~/.$", "~$").replace("~/$", "~$"),
            0.0,
            False,
            False,
            {"status": ran.status},
        )

    def sample_action(self) -> str:
        return self.action_rng.choice(
            (
                "ls -R",
                "pwd",
                "cat *",
                "head -n 5 */*",
                "wc -l *",
                "cd ..",
                "echo 42 > answer",
                "submit",
            )
        )

    def expert(self) -> Iterator[str]:
        """Looks around, and runs a command that is known to do."""
        yield "ls -R"
        yield self.task.solution
        yield "submit"

    def _score(self, shown: str, truncated: bool) -> StepResult:
        held = _shell(self.seconds).check(self.task.tests, self.home)
        solved = all(held)
        said = f"{shown}{sum(held)} of {len(held)} tests pass."
        info = {"success": solved, "tests_passed": sum(held), "tests_run": len(held)}
        return said, float(solved), not truncated, truncated, info


def _known(kind: object, error: type[ConfigError | OptionError]) -> str:
    if kind in KINDS:
        return str(kind)
    raise error(f"kind must be one of {', '.join(KINDS)}; given: {kind!r}")


@cache
def _shell(seconds: float) -> Shell:
    """One for all environments with the same limit."""
    return Shell(seconds)
