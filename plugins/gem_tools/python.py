"""Python tool: runs the model's programs in the sandbox and shows their output."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gem_core.errors import ConfigError
from gem_tools.sandbox.sandbox import Isolation, Outcome, Sandbox, SandboxLimits
from gem_tools.tool import Tool, ToolResult

__all__ = ["PythonTool"]

_FENCE = "```"
_shared: dict[Any, Sandbox] = {}
_lock = threading.Lock()


class PythonTool(Tool):
    """A tool that runs one program per call.

    With `state="episode"`, names persist within an episode, as in an interactive session; a call
    that fails changes none. `info["lost"]` lists the names that cannot persist.
    """

    name = "python"
    main_argument = "code"
    example = "print(1 + 1)"
    deterministic = False  # a program may read the clock or random numbers

    def __init__(
        self,
        *,
        seconds: float = 5.0,
        cpu_seconds: int | None = None,
        memory_mb: int = 1024,
        processes: int = 16,
        file_mb: int = 16,
        disk_mb: int = 64,
        output_kb: int = 8,
        isolation: Isolation = "auto",
        state: Literal["none", "episode"] = "none",
        errors: Literal["full", "last_line"] = "full",
        packages: bool = False,
        preload: Sequence[str] = (),
        image: str = "",
        sandbox: Sandbox | None = None,
    ) -> None:
        """Configure the tool; tools with equal settings share a sandbox.

        See `SandboxLimits` for the limits and `Sandbox` for `isolation`, `packages`, `preload` and
        `image`.
        `errors` selects how much of a traceback to show.
        """
        if state not in ("none", "episode"):
            raise ConfigError(f"state must be 'none' or 'episode'; got {state!r}")
        if errors not in ("full", "last_line"):
            raise ConfigError(f"errors must be 'full' or 'last_line'; got {errors!r}")
        limits = SandboxLimits(
            seconds, cpu_seconds, memory_mb, processes, file_mb, disk_mb, output_kb
        )
        self.sandbox = sandbox or _sandbox(limits, isolation, packages, tuple(preload), image)
        self.limits = self.sandbox.limits
        self.keep, self.errors = state == "episode", errors
        libraries = (
            "The standard library and the installed packages are"
            if packages
            else "The standard library is"
        )
        memory = (
            "Names live on from call to call, and the value of a last expression is shown."
            if self.keep
            else "Each call starts anew: nothing is kept from earlier calls. "
            "Use print() to see a value."
        )
        self.description = (
            "Runs a Python program and shows what it prints. "
            f"{libraries} there; there are no files and no network. "
            f"{memory} A program is stopped after {self.limits.seconds:g} s."
        )
        self.parameters = {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the program"}},
            "required": ["code"],
        }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Run the program; blocks until it ends."""
        code = str(arguments["code"])
        outcome = self.sandbox.run(_program(code), state=state, keep=self.keep, echo=self.keep)
        containment = self.sandbox.containment
        info: dict[str, Any] = {
            "end": outcome.end,
            "status": outcome.status,
            "seconds": outcome.seconds,
            "sandbox": containment.kind,
            "not_contained": list(containment.not_contained),
        }
        if outcome.lost:
            info["lost"] = list(outcome.lost)
        return ToolResult(
            self._shown(outcome), error=outcome.end != "ok", state=outcome.state, info=info
        )

    @classmethod
    def status(cls) -> str:
        with Sandbox(warm=0) as sandbox:
            containment = sandbox.containment
        if containment.full:
            return f"full isolation ({containment.kind})"
        return (
            f"partial isolation ({', '.join(containment.parts)}); "
            f"not contained: {', '.join(containment.not_contained)}"
        )

    def _shown(self, outcome: Outcome) -> str:
        limits, stderr = self.limits, outcome.stderr.rstrip("\n")
        if self.errors == "last_line" and outcome.end == "error":
            stderr = stderr.rpartition("\n")[2]
        parts = [part for part in (outcome.stdout.rstrip("\n"), stderr) if part]
        if outcome.cut:
            parts.append(f"(only the first {limits.output_kb:g} KB of the output are shown)")
        if outcome.end == "time":
            parts.append(f"The program was stopped: it took over {limits.seconds:g} s.")
        elif outcome.end == "output":
            parts.append("The program was stopped: it wrote too much.")
        elif outcome.end == "killed":
            parts.append(
                "The program was killed: it went over a limit, "
                "of processor time or memory for instance, or crashed."
            )
        elif outcome.end == "error" and not stderr:
            parts.append(f"The program ended with status {outcome.status}.")
        if outcome.lost:
            parts.append(
                f"(these names cannot be kept for the next call: {', '.join(outcome.lost)})"
            )
        return "\n".join(parts) or "(the program printed nothing)"


def _program(code: str) -> str:
    """Return the program without the fence of a code block, if one encloses it."""
    text = code.strip()
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return code
    language, newline, body = text[len(_FENCE) : -len(_FENCE)].partition("\n")
    if not newline or language.strip().lower() not in ("", "python", "py"):
        return code
    return body.rstrip(" \t").removesuffix("\n")


def _sandbox(
    limits: SandboxLimits,
    isolation: Isolation,
    packages: bool,
    preload: tuple[str, ...],
    image: str,
) -> Sandbox:
    """Return the sandbox that all tools with equal settings share.

    The engine creates a tool for each environment.
    """
    pid = os.getpid()  # a sandbox has threads, which do not survive a fork
    key = (pid, limits, isolation, packages, preload, image)
    with _lock:
        if key not in _shared:
            _shared[key] = Sandbox(
                limits, isolation=isolation, packages=packages, preload=preload, image=image
            )
        return _shared[key]
