"""Containment: what a sandbox isolates on this machine, determined by trial."""

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
from gem_tools.sandbox.cgroup import memory_groups
from gem_tools.sandbox.container import ContainerBox, ContainerPlan, engine, missing_image
from gem_tools.sandbox.launch import Plan, SandboxLimits, bubblewrap, bubblewrap_version
from gem_tools.sandbox.process import Box
from gem_tools.tool import ToolError

__all__ = ["Containment", "Isolation", "contain", "make_box"]

Isolation = Literal["auto", "full", "partial", "container"]
"""`auto`: bubblewrap if it works, else the fallback; `full`: bubblewrap or an error; `partial`: the
fallback; `container`: a container of podman or docker, or an error."""


@dataclass(frozen=True, slots=True)
class Containment:
    """What a sandbox isolates and what it does not."""

    kind: Literal["bubblewrap", "container", "process"]
    parts: tuple[str, ...]
    """The mechanisms in force: `bubblewrap`, `container`, `cgroup`, `uid`, `landlock`, `seccomp`,
    `rlimits`."""
    contained: tuple[str, ...]
    not_contained: tuple[str, ...]
    reason: str = ""
    """Why bubblewrap is not used."""

    @property
    def full(self) -> bool:
        """Whether there is no known way out."""
        return self.kind != "process"


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
def contain(isolation: Isolation, filters: bool, image: str = "") -> Containment:
    """Return the best containment that works on this machine; each is tried once."""
    if isolation == "container":
        return _container(image)
    reason = "isolation='partial' was requested"
    if isolation != "partial":
        parts = ["bubblewrap", "rlimits"] + ["seccomp"] * seccomp.supported()
        if os.name == "posix" and os.geteuid() == 0:
            parts.append("uid")
        parts += ["cgroup"] * (memory_groups() is not None)
        full = Containment("bubblewrap", tuple(parts), tuple(_CONTAINED.values()), ())
        reason = _failure(full)
        if not reason:
            return full
    if isolation == "full":
        raise ConfigError(
            f"isolation='full' needs bubblewrap, which does not work here: {reason}. "
            "Install it (apt-get install bubblewrap) and allow user namespaces, "
            "or use isolation='auto'; docs/sandbox.md lists what is then not contained"
        )
    if os.name != "posix":
        raise ConfigError(f"the Python sandbox needs a POSIX system; this is {sys.platform}")
    return _fallback(filters, reason)


def make_box(plan: Plan) -> Box:
    """Start the worker of a plan."""
    return ContainerBox(plan) if isinstance(plan, ContainerPlan) else Box(plan)


def _container(image: str) -> Containment:
    parts = ("container", "uid", "rlimits") + ("seccomp",) * seccomp.supported()
    reason = missing_image(image) or _trial(ContainerPlan(image, SandboxLimits()))
    if reason:
        raise ConfigError(
            f"isolation='container' does not work here with {' '.join(engine())} and the image "
            f"{image}: {reason}"
        )
    return Containment("container", parts, tuple(_CONTAINED.values()), ())


def _fallback(filters: bool, reason: str) -> Containment:
    parts = ["rlimits"]
    if filters and sys.platform == "linux":
        wanted = ("rlimits", "landlock", *(("seccomp",) * seccomp.supported()))
        with contextlib.suppress(ToolError):
            parts += _working_filters(wanted)
    with_uid = Containment("process", (*parts, "uid"), (), ())
    if filters and os.geteuid() == 0 and not _failure(with_uid):
        parts.append("uid")
    if filters and memory_groups() is not None:
        parts.append("cgroup")
    keys = {"memory", "leftovers"}
    if "landlock" in parts:
        keys |= {"files", "environment"}
    if "seccomp" in parts:
        keys |= {"network", "signals", "processes", "outliving"}
    if "uid" in parts:
        keys |= {"environment", "signals", "processes", "threads"}
    if sys.platform != "linux":
        keys -= {"memory"}
    if "landlock" not in parts or "seccomp" not in parts:
        keys -= {"leftovers"}
    contained = tuple(text for key, text in _CONTAINED.items() if key in keys)
    not_contained = tuple(text for key, text in _CONTAINED.items() if key not in keys)
    return Containment("process", tuple(parts), contained, not_contained, reason)


def _working_filters(parts: tuple[str, ...]) -> list[str]:
    box = Box(Plan(parts, SandboxLimits()))
    try:
        return [part for part in box.parts() if part in ("landlock", "seccomp")]
    finally:
        box.end()


def _failure(containment: Containment) -> str:
    """Return why a containment does not work on this machine, or ""."""
    if containment.kind == "bubblewrap":
        if sys.platform != "linux" or not bubblewrap():
            return "bubblewrap (the command bwrap) is not installed"
        if _version(bubblewrap_version()) < (0, 7):
            return f"bubblewrap {bubblewrap_version()} cannot limit the disk space; 0.7 can"
        if os.geteuid() != 0 and _version(platform.release()) < (5, 14):
            return (
                f"Linux {platform.release()} counts processes per user, not per sandbox; "
                "5.14 or later is needed"
            )
    return _trial(Plan(containment.parts, SandboxLimits()))


def _trial(plan: Plan) -> str:
    """Return why a program does not run in a sandbox, or ""."""
    program = "import colorsys\nprint(6 * 7)"
    try:
        box = make_box(plan)
        try:
            outcome = box.serve(program, None, False, False, SandboxLimits(seconds=10))
        finally:
            box.end()
    except (ToolError, OSError) as error:
        return str(error)
    if outcome.stdout == "42\n":
        return ""
    return f"a trial ended with {outcome.end}: {outcome.stderr.strip()[-300:]}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])
