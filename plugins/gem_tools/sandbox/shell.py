"""Shell: bash in the sandbox with a home that lives on. Each command runs in a box of its own, which is given the files of the
home and gives them back; nothing of a command runs outside, and nothing of it runs on.

It needs full isolation, which is bubblewrap: the fallback of the sandbox allows no further processes, and so no shell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.sandbox.sandbox import Sandbox, SandboxLimits
from gem_tools.tool import ToolError

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
    """The files of a home, and the folder in it the next command starts in. Plain data: keep it, copy it, go back to it."""

    files: bytes
    """Written and read in the sandbox only."""
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    output: str
    status: int
    """That of bash; 124 where the command was stopped, 137 where its box was."""
    home: Home


class Shell:
    """Runs commands in homes. Thread-safe, and made for many homes at once."""

    def __init__(self, seconds: float = 10.0, *, memory_mb: int = 1024, disk_mb: int = 32) -> None:
        """`seconds`: the time of one command. A home holds `disk_mb` at most."""
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not 0 < seconds < float("inf")
        ):
            raise ConfigError(f"seconds must be a number above 0; given: {seconds!r}")
        self.seconds = float(seconds)
        limits = SandboxLimits(
            seconds=self.seconds
            + 10.0,  # the program inside stops a command in time, and then still packs the home
            memory_mb=memory_mb,
            processes=32,
            disk_mb=2 * disk_mb,
            file_mb=disk_mb,
            output_kb=256,
        )
        self._sandbox = Sandbox(limits, isolation="full", preload=_PRELOAD)

    def create(self, files: Sequence[tuple[str, str, int]], setup: str = "") -> Home:
        """A home with files, (path, text, mode) each; a path that ends in a slash is a folder. `setup` is a command run in it."""
        answer, home = self._do(
            None, {"do": "write", "files": [list(file) for file in files], "setup": setup}
        )
        if answer is None or answer["status"]:
            raise ToolError(
                f"a home could not be set up: {answer['output'] if answer else 'its box was stopped'}"
            )
        return home

    def run(self, command: str, home: Home) -> Ran:
        """Runs a command; a home it broke, by filling the disk for instance, stays as it was."""
        answer, after = self._do(home, {"do": "run", "command": command, "cwd": home.cwd})
        if answer is None:
            return Ran(
                "(the command was killed, or left files that cannot be read: what it did is lost)",
                137,
                home,
            )
        return Ran(answer["output"], answer["status"], Home(after.files, answer["cwd"]))

    def check(self, tests: Sequence[tuple[str, str, Any]], home: Home) -> list[bool]:
        """Which tests hold of a home: (kind, path or command, expected), as `holds` in shell_program.py reads them."""
        answer, _ = self._do(home, {"do": "check", "tests": [list(test) for test in tests]})
        return (
            [False] * len(tests)
            if answer is None
            else [bool(passed) for passed in answer["passed"]]
        )

    def close(self) -> None:
        """Ends the waiting boxes."""
        self._sandbox.close()

    def _do(self, home: Home | None, job: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Home]:
        call = repr({**job, "seconds": self.seconds})
        # The text is a constant of the program, so that none of its functions is among the names that are kept.
        code = f"space = {{}}\nexec({_program()!r}, space)\nhome = space['main'](globals().get('home'), {call})\ndel space"
        outcome = self._sandbox.run(code, state=home.files if home else None, keep=True)
        if outcome.end != "ok" or outcome.state is None:
            return None, home or Home(b"")
        answer: dict[str, Any] = json.loads(outcome.stdout.rstrip("\n").rpartition("\n")[2])
        return answer, Home(outcome.state)


@cache
def _program() -> str:
    return Path(__file__).with_name("shell_program.py").read_text(encoding="utf-8")
