"""Containment: what holds the programs of a sandbox on this machine, and what does not. Tried out, not guessed."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from gem_core.errors import ConfigError
from gem_tools.sandbox import seccomp
from gem_tools.sandbox.launch import Plan, SandboxLimits, bubblewrap, bubblewrap_version
from gem_tools.sandbox.process import Box
from gem_tools.tool import ToolError

__all__ = ["Containment", "Isolation", "contain"]

Isolation = Literal["auto", "full", "partial"]
"""`auto`: bubblewrap where it works, else the fallback; `full`: refuse to run without it; `partial`: always the fallback."""


@dataclass(frozen=True, slots=True)
class Containment:
    """What holds the programs of a sandbox, and what does not."""

    kind: Literal["bubblewrap", "process"]
    parts: tuple[str, ...]
    """What is in force: `bubblewrap`, `uid`, `landlock`, `seccomp`, `rlimits`."""
    contained: tuple[str, ...]
    not_contained: tuple[str, ...]
    reason: str = ""
    """Why it is not bubblewrap."""

    @property
    def full(self) -> bool:
        """Whether nothing is known that gets out."""
        return self.kind == "bubblewrap"


_CONTAINED = {
    "files": "files of the user",
    "metadata": "names, sizes and dates of files",
    "environment": "environment variables of the parent",
    "network": "the network",
    "signals": "signals to other processes",
    "processes": "the number of processes",
    "threads": "the number of threads",
    "outliving": "processes that outlive the call",
    "memory": "memory of a process",
    "disk": "disk space in all",
    "leftovers": "files, modules and threads left for the next call",
}


@lru_cache(maxsize=16)
def contain(isolation: Isolation, filters: bool) -> Containment:
    """Tries what this machine offers, once."""
    reason = "isolation='partial' was asked for"
    if isolation != "partial":
        parts = ["bubblewrap", "rlimits"] + ["seccomp"] * seccomp.supported()
        if os.name == "posix" and os.geteuid() == 0:
            parts.append("uid")
        boxed = Containment("bubblewrap", tuple(parts), tuple(_CONTAINED.values()), ())
        reason = _why_not(boxed)
        if not reason:
            return boxed
    if isolation == "full":
        raise ConfigError(
            f"isolation='full' needs bubblewrap, which does not work here: {reason}. Install it (apt-get install bubblewrap) and "
            "allow user namespaces, or take isolation='auto' and read docs/sandbox.md on what is then not contained"
        )
    if os.name != "posix":
        raise ConfigError(f"the Python sandbox needs a POSIX system; this is {sys.platform}")
    return _fallback(filters, reason)


def _fallback(filters: bool, reason: str) -> Containment:
    parts = ["rlimits"]
    if filters and sys.platform == "linux":
        tried = Containment(
            "process", ("rlimits", "landlock", *(("seccomp",) * seccomp.supported())), (), ()
        )
        with contextlib.suppress(ToolError):
            parts += _started(tried)
    if (
        filters
        and os.geteuid() == 0
        and not _why_not(Containment("process", (*parts, "uid"), (), ()))
    ):
        parts.append("uid")
    holds = {"memory", "leftovers"}
    if "landlock" in parts:
        holds |= {"files", "environment"}
    if "seccomp" in parts:
        holds |= {"network", "signals", "processes", "outliving"}
    if "uid" in parts:
        holds |= {"environment", "signals", "processes", "threads"}
    if sys.platform != "linux":
        holds -= {"memory"}
    if "landlock" not in parts or "seccomp" not in parts:
        holds -= {"leftovers"}
    contained = tuple(text for key, text in _CONTAINED.items() if key in holds)
    return Containment(
        "process",
        tuple(parts),
        contained,
        tuple(t for t in _CONTAINED.values() if t not in contained),
        reason,
    )


def _started(containment: Containment) -> list[str]:
    box = Box(Plan(containment.parts, SandboxLimits()))
    try:
        return [part for part in box.parts() if part in ("landlock", "seccomp")]
    finally:
        box.end()


def _why_not(containment: Containment) -> str:
    """Why a containment does not work on this machine; empty where it does."""
    if containment.kind == "bubblewrap":
        if sys.platform != "linux" or not bubblewrap():
            return "bubblewrap (the command bwrap) is not installed"
        version = tuple(int(n) for n in re.findall(r"\d+", bubblewrap_version())[:2])
        if version < (0, 7):
            return f"bubblewrap {bubblewrap_version()} is too old, 0.7 can limit the disk"
        if os.geteuid() != 0 and tuple(
            int(n) for n in re.findall(r"\d+", platform.release())[:2]
        ) < (5, 14):
            return f"Linux {platform.release()} counts processes for each user, not for each sandbox; 5.14 does"
    try:
        box = Box(Plan(containment.parts, SandboxLimits()))
        try:
            outcome = box.serve(
                "import colorsys\nprint(6 * 7)", None, False, False, SandboxLimits(seconds=10)
            )
        finally:
            box.end()
    except (ToolError, OSError) as error:
        return str(error)
    return (
        ""
        if outcome.stdout == "42\n"
        else f"a trial ended with {outcome.end}: {outcome.stderr.strip()[-300:]}"
    )
