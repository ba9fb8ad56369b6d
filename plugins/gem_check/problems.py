"""Problems: what the checker reports, and how it describes an error."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gem_core.env.base import Env
from gem_core.errors import ContractError, GemError
from gem_core.types import Failure

__all__ = ["Problem", "Report", "describe"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of the contract."""

    check: str
    """The name of the check; several names if they report the same, such as `types, seeding`."""
    message: str

    def __str__(self) -> str:
        first, *others = self.check.split(", ")
        more = f" and {len(others)} more" if len(others) > 1 else "".join(f", {o}" for o in others)
        return f"[{first}{more}] {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of checking one environment."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    """What the checker could not try, one sentence each."""


def describe(error: BaseException) -> str:
    """Describe an error, with the place in the author's code if known."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1]
    place = ""
    if isinstance(error, ContractError) and _is_ours(last):
        # The method returned a bad result, so the traceback has no frame of it.
        owner: Any = last.f_locals.get("self")
        owner = owner if isinstance(owner, Env) else getattr(owner, "env", None)
        hook = "on_reset" if last.f_code.co_name == "_check_reset" else "on_step"
        place = getattr(getattr(owner, hook, None), "__qualname__", "")
    else:
        if isinstance(error, GemError):
            frames = [frame for frame in frames if not _is_ours(frame)]
        if frames:
            code = frames[-1].f_code
            place = f"{os.path.basename(code.co_filename)}:{frames[-1].f_lineno}"
    failure = Failure.from_error(error, place)
    return f"{failure.kind}: {failure.message.rstrip('.')}" + (f" ({place})" if place else "")


def _is_ours(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("gem_core", "gem_check")
