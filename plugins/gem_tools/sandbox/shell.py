"""Shell: bash in the sandbox, with a home folder that persists between commands.

Each command runs in its own box, which receives the files of the home folder and returns them. No
process of a command runs outside of its box or after the command.

The shell needs full isolation, by bubblewrap or in a container: the fallback denies new processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gem_core.errors import ConfigError
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.tool import ToolError, printable

__all__ = ["Home", "Ran", "Shell"]

_PRELOAD = (
    "contextlib",
    "io",
    "json",
    "os",
    "select",
    "shutil",
    "signal",
    "stat",
    "subprocess",
    "sys",
    "tarfile",
    "time",
    "typing",
)


@dataclass(frozen=True, slots=True)
class Home:
    """The files of a home folder and the working directory of the next command.

    Plain data: it can be stored, copied and restored.
    """

    files: bytes
    """An archive; only the sandbox reads and writes it."""
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    output: str
    status: int
    """The exit status of bash; 124 if the command was stopped, 137 if its box was killed."""
    home: Home


class Shell:
    """A shell for many home folders at once. Thread-safe."""

    def __init__(
        self,
        seconds: float = 10.0,
        *,
        memory_mb: int = 1024,
        disk_mb: int = 32,
        isolation: Literal["full", "container"] = "full",
        image: str = "",
    ) -> None:
        """Create the shell; `seconds` limits a command, `disk_mb` the size of a home folder.

        A container has the programs of its `image`, which must have `python3` and `bash`.
        """
        if isolation not in ("full", "container"):
            raise ConfigError(f"isolation must be 'full' or 'container'; got {isolation!r}")
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < float("inf"):
            raise ConfigError(f"seconds must be a positive number; got {seconds!r}")
        self.seconds = float(seconds)
        limits = SandboxLimits(
            # The program in the box stops the command in time; it still has to pack the home.
            seconds=self.seconds + 10.0,
            memory_mb=memory_mb,
            processes=32,
            disk_mb=2 * disk_mb,
            file_mb=disk_mb,
            output_kb=256,
        )
        self._sandbox = Sandbox(limits, isolation=isolation, preload=_PRELOAD, image=image)

    def create(self, files: Sequence[tuple[str, str, int]], setup: str = "") -> Home:
        """Create a home folder with files, (path, text, mode) each.

        A path that ends in a slash is a folder. The command `setup` then runs in the home folder.
        """
        job = {"do": "write", "files": [list(file) for file in files], "setup": setup}
        answer, home = self._do(None, job)
        if answer is None or answer["status"]:
            reason = answer["output"] if answer else "its box was killed"
            raise ToolError(f"cannot set up a home folder: {reason}")
        return home

    def run(self, command: str, home: Home) -> Ran:
        """Run a command; if its box is killed, the home folder stays as it was."""
        answer, after = self._do(home, {"do": "run", "command": command, "cwd": home.cwd})
        if answer is None:
            output = (
                "(the command was killed, or left files that cannot be read: what it did is lost)"
            )
            return Ran(output, 137, home)
        return Ran(printable(answer["output"]), answer["status"], Home(after.files, answer["cwd"]))

    def check(self, tests: Sequence[tuple[str, str, Any]], home: Home) -> list[bool]:
        """Return which tests pass; `shell_program.holds` defines (kind, path, expected)."""
        answer, _ = self._do(home, {"do": "check", "tests": [list(test) for test in tests]})
        if answer is None:
            return [False] * len(tests)
        return [bool(passed) for passed in answer["passed"]]

    def close(self) -> None:
        """End the waiting boxes."""
        self._sandbox.close()

    def _do(self, home: Home | None, job: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Home]:
        call = repr({**job, "seconds": self.seconds})
        # The program's text is a constant, so the sandbox does not keep its functions as names.
        code = (
            f"space = {{}}\nexec({_program()!r}, space)\n"
            f"home = space['main'](globals().get('home'), {call})\ndel space"
        )
        outcome = self._sandbox.run(code, state=home.files if home else None, keep=True)
        if outcome.end != "ok" or outcome.state is None:
            return None, home or Home(b"")
        answer: dict[str, Any] = json.loads(outcome.stdout.rstrip("\n").rpartition("\n")[2])
        return answer, Home(outcome.state)


@cache
def _program() -> str:
    return Path(__file__).with_name("shell_program.py").read_text(encoding="utf-8")
