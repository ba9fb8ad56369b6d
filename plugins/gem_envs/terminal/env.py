"""Terminal: tasks in a persistent bash session, scored by tests of the result.

Each action is a shell command.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError
from gem_envs.terminal.checks import passed
from gem_envs.terminal.ids import LEVELS, TERMINAL_KINDS
from gem_envs.terminal.kinds import KINDS
from gem_tools.calls import without_thinking
from gem_tools.code_blocks import code_blocks
from gem_tools.sandbox.containment import contain
from gem_tools.session.session import HOME, Session, SessionLost, check_seconds
from gem_tools.tool import ToolError

__all__ = ["Terminal"]

_LANGUAGES = ("", "bash", "sh", "shell", "console")
_NEEDS = ("bash", "git", "make", "tar")
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
_QUIET = "disown -a 2>/dev/null; true"
"""Keeps the shell from announcing the background jobs of the set-up to the model."""
_NOTES = {
    "time": "(stopped: the command took over {seconds:g} s)",
    "output": "(stopped: the command wrote too much)",
    "exit": "(the shell exited; this is a new one)",
    "restart": "(stopped: the command took over {seconds:g} s; the shell had to be restarted)",
    "killed": "(the shell could not go on: all processes were killed; this is a new shell)",
}


class Terminal(Env):
    """A task in a terminal; the reward is 1 if every test passes at the end, else 0.

    The tests run after `submit` and after the last turn. Files, processes, variables and the
    working directory persist between commands. The last `info` has `tests_passed` and `tests_run`.
    The option `kind` selects the kind of task.
    """

    execution = "thread"
    deterministic = False  # a command may read the clock
    option_names = frozenset({"kind"})
    action_example = "ls -l"

    def __init__(
        self,
        kind: str | None = None,
        level: str | None = None,
        max_turns: int = 15,
        seconds: float = 10.0,
    ) -> None:
        """Create the environment.

        `kind` is the kind of task; None draws one in every episode, of this `level` (easy, medium
        or hard) if it is set. A `kind` of another level raises ConfigError. `seconds` is the time
        limit of one command.
        """
        if level is not None and level not in LEVELS:
            raise ConfigError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
        self.kind = None if kind is None else _checked_kind(kind, ConfigError)
        self.kinds = [name for name, (of, _) in TERMINAL_KINDS.items() if level in (None, of)]
        if self.kind is not None and self.kind not in self.kinds:
            raise ConfigError(
                f"the kind {kind} is {TERMINAL_KINDS[self.kind][0]}, but level is {level!r}; "
                f"use the id terminal:{kind}-v0 without level"
            )
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.seconds = check_seconds(seconds)
        self.session: Session | None = None
        contain("full", True)  # raises now if bubblewrap is missing
        missing = [program for program in _NEEDS if shutil.which(program) is None]
        if missing:
            raise ConfigError(
                f"the terminal tasks need the programs {', '.join(_NEEDS)}; "
                f"install the missing {', '.join(missing)}"
            )

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        kind = options.get("kind")
        if kind is None:
            kind = self.kind or self.rng.choice(self.kinds)
        else:
            kind = _checked_kind(kind, OptionError)
        self.task = KINDS[kind](self.rng)
        self.on_close()
        self.session, self.cwd = Session(), HOME
        self.session.write(self.task.files)
        if self.task.setup:
            result = self.session.run(self.task.setup, 60.0)
            if result.status or result.end:
                raise ToolError(f"cannot set up the task {kind}: {result.output[-500:]}")
            self.session.run(f"cd; {_QUIET}")
        observation = (
            f"You are at a bash prompt in your home folder, ~. {self.task.instruction}\n"
            "Each of your messages is one command, or a short script, that is typed into the same "
            "shell: files, variables, the working directory and background processes persist. "
            "There is no network beyond localhost. When you are done, write submit. "
            f"You have {self.max_turns} turns, and {self.seconds:g} s for each command."
        )
        return observation, {"kind": kind, "level": TERMINAL_KINDS[kind][0]}

    def on_step(self, action: str) -> StepResult:
        assert self.session is not None
        action = without_thinking(action)
        blocks = [body for name, body in code_blocks(action) if name.lower() in _LANGUAGES]
        command = (blocks[-1] if blocks else action).strip()
        if command == "submit":
            return self._score("", truncated=False)
        try:
            result = self.session.run(command, self.seconds)
        except SessionLost as lost:
            if not lost.by_command:  # the machine or gem: nothing to score
                raise
            info = {"success": False, "tests_passed": 0, "tests_run": len(self.task.tests)}
            self.on_close()
            return "The command ended the terminal itself.", 0.0, True, False, info
        self.cwd = result.cwd or self.cwd
        output = result.output.rstrip("\n")
        if result.end:
            output = f"{output}\n{_NOTES[result.end].format(seconds=self.seconds)}".lstrip("\n")
        output = output or "(no output)"
        if result.status:
            output += f"\n(status {result.status})"
        if self.turn + 1 >= self.max_turns:
            return self._score(
                f"{output}\nThat was the last of {self.max_turns} turns.\n", truncated=True
            )
        shown = f"~{self.cwd[len(HOME) :]}" if f"{self.cwd}/".startswith(f"{HOME}/") else self.cwd
        return f"{output}\n{shown}$", 0.0, False, False, {"status": result.status}

    def on_close(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def sample_action(self) -> str:
        return self.action_rng.choice(_RANDOM_COMMANDS)

    def expert(self) -> Iterator[str]:
        """List the files, run the task's reference solution, and submit."""
        yield "ls -R"
        yield from self.task.solution
        yield "submit"

    def _score(self, output: str, truncated: bool) -> StepResult:
        assert self.session is not None
        try:
            results = passed(self.task.tests, self.session, self.seconds)
        except SessionLost as lost:
            if not lost.by_command:
                raise
            results = [False] * len(self.task.tests)
        self.on_close()
        solved = all(results)
        observation = f"{output}{sum(results)} of {len(results)} tests pass."
        info = {"success": solved, "tests_passed": sum(results), "tests_run": len(results)}
        return observation, float(solved), not truncated, truncated, info


def _checked_kind(kind: object, error: type[ConfigError | OptionError]) -> str:
    if kind in KINDS:
        return str(kind)
    raise error(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
