"""Environment checker: checks that an environment keeps the `Env` contract.

    check_env("game:Wordle-v0-easy")       # an id, `file.py:Class`, or an object, which it spawns
    find_problems("game:Wordle-v0-easy")   # return the problems as data

The command is `gem-rl check PATTERN`. Determinism is checked in this process and in two others with
different PYTHONHASHSEED: the same seed and actions must give byte-identical transcripts.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from gem_check.checks import CHECKS, CheckedEnv, check_other_processes
from gem_check.problems import Problem, Report, describe
from gem_check.subject import STEP_LIMIT, env_name
from gem_check.transcripts import stop_script
from gem_core.env.base import Env
from gem_core.errors import CheckError, MissingDependencyError

__all__ = ["Problem", "Report", "check_env", "examine", "find_problems"]

_log = logging.getLogger(__name__)
_METHODS = ("on_reset", "on_step", "on_close", "sample_action", "expert", "__init__")


def check_env(
    env: str | Env,
    *,
    processes: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
    step_limit: float = STEP_LIMIT,
) -> None:
    """Raise `CheckError` with a sentence per problem, and log what could not be checked.

    `processes` also plays in other processes; `env_kwargs` are the arguments of an id; `step_limit`
    is the number of seconds that one call of the environment may take.
    """
    report = examine(env, processes=processes, env_kwargs=env_kwargs, step_limit=step_limit)
    for note in report.notes:
        _log.warning("%s", note)
    if report.problems:
        listing = "\n".join(f"- {problem}" for problem in report.problems)
        raise CheckError(f"{env_name(env)} has {len(report.problems)} problem(s):\n{listing}")


def find_problems(env: str | Env, **kwargs: Any) -> list[Problem]:
    """Return the problems of an environment; takes the arguments of `check_env`.

    Raises `MissingDependencyError` if it needs packages that are not installed.
    """
    return list(examine(env, **kwargs).problems)


def examine(
    env: str | Env,
    *,
    processes: bool = True,
    env_kwargs: Mapping[str, Any] | None = None,
    step_limit: float = STEP_LIMIT,
) -> Report:
    """Return the problems of an environment, and notes on what could not be checked."""
    stop_script()
    subject = CheckedEnv(env, env_kwargs=env_kwargs, step_limit=step_limit)
    # In a thread, because nothing else can be done about a step that never returns. The thread is
    # left behind; a daemon, it does not keep the program alive.
    done: Future[None] = Future()
    thread = threading.Thread(target=_run_checks, args=(subject, processes, done), daemon=True)
    thread.start()
    while not done.done():
        wait([done], timeout=max(subject.deadline - time.monotonic(), 0.01))
        if not done.done() and time.monotonic() > subject.deadline:
            subject.report(_hang(subject, thread), "step_limit")
            break
    else:
        done.result()
    problems = [Problem(", ".join(checks), text) for text, checks in subject.problems.items()]
    return Report(tuple(problems), tuple(subject.notes))


def _run_checks(subject: CheckedEnv, processes: bool, done: Future[None]) -> None:
    try:
        _check(subject, processes)
        done.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised in the thread of the caller
        done.set_exception(error)


def _check(subject: CheckedEnv, processes: bool) -> None:
    try:
        with subject.closing():
            subject.make()
    except (MissingDependencyError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - reported as a problem
        # Each check would report this error again.
        subject.report(f"{subject.name} cannot be made: {describe(error)}.", "making")
        return
    for check in CHECKS:
        if check is check_other_processes and not processes:
            continue
        name = check.__name__.removeprefix("check_")
        try:
            with subject.closing():
                for message in check(subject):
                    subject.report(message, name)
        except (MissingDependencyError, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - reported as a problem
            subject.report(f"{subject.name} raised {describe(error)}.", name)


def _hang(subject: CheckedEnv, thread: threading.Thread) -> str:
    """Describe the call that does not return, with the author's method and line if known."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name not in _METHODS:
        frame = frame.f_back
    place = ""
    if frame is not None:
        code = frame.f_code
        place = f" ({code.co_name}, {os.path.basename(code.co_filename)}:{frame.f_lineno})"
    return (
        f"{subject.name} did not return within {subject.step_limit:g} s{place}; "
        "the other checks were not run."
    )
