"""Transcripts: complete episodes as comparable data, played in this process or in another one.

`check_env` compares them: the same seed and actions must give byte-identical transcripts under any
PYTHONHASHSEED.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gem_check.subject import SEEDS, Subject
from gem_core.env.base import Env
from gem_core.env.ids import is_file_id, is_mixture
from gem_core.env.registry import environments, register
from gem_core.env.wrapper import Wrapper
from gem_core.plugins.entry_points import EntryPoint, load_entry_point
from gem_core.types import Failure

__all__ = [
    "digests",
    "recipe_of",
    "stop_script",
    "transcripts",
    "transcripts_elsewhere",
]


def transcripts(ids: Iterable[str]) -> dict[str, list[str] | str]:
    """Return, for each id, a digest of each seed's transcript, or an error message."""
    return {id: _digests_or_error(Subject(id)) for id in ids}


def transcripts_elsewhere(
    recipes: Sequence[str | tuple[Any, ...]], hash_seed: int, seconds: float | None = None
) -> dict[str, list[str] | str]:
    """Return `transcripts` from a new process with that PYTHONHASHSEED, killed after `seconds`.

    A recipe is an id or the result of `recipe_of`. Pass many recipes at once, because starting the
    process takes longer than playing.
    """
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
    }
    command = [
        sys.executable,
        "-c",
        # -c puts the working folder first on the path, where a gem_core.py may be. Put it last: a
        # test suite may import the environment's module from there.
        "import os, sys; sys.path = [*filter(None, sys.path), os.getcwd()]; "
        "from gem_check.transcripts import _play_recipes; _play_recipes()",
    ]
    stdin = base64.b64encode(pickle.dumps(list(recipes)))
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"a process that plays environments did not finish within {seconds:g} s"
        ) from None
    if done.returncode:
        raise RuntimeError(
            f"a process that plays environments failed with exit code {done.returncode}: "
            f"{done.stderr.decode()[-2000:]}"
        )
    results: dict[str, list[str] | str] = json.loads(done.stdout.splitlines()[-1])
    return results


def recipe_of(subject: Subject) -> str | tuple[Any, ...] | None:
    """Return a picklable recipe that makes the environment in another process, or None."""
    source = subject.source
    recipe: Any = None
    if isinstance(source, Env):
        if not isinstance(source, Wrapper):
            recipe = ("class", subject.name, _importable(type(source)), *source._made_with)
    elif is_mixture(source):
        recipe = None if subject.env_kwargs else source
    else:
        spec: Any = subject.spec
        kwargs = {**spec.kwargs, **subject.env_kwargs}
        recipe = ("id", source, _importable(spec.entry_point), kwargs, spec.wrappers)
    try:
        pickled = pickle.dumps(recipe)
    except Exception:  # noqa: BLE001 - for example a local class or a lambda
        return None
    # The other process has another __main__.
    return None if recipe is None or b"__main__" in pickled else recipe


def _importable(entry_point: EntryPoint) -> EntryPoint:
    """Return `file.py:Class` for a class of the running script."""
    main = sys.modules["__main__"]
    file, name = getattr(main, "__file__", None), getattr(entry_point, "__qualname__", "")
    if file is None or getattr(main, name, None) is not entry_point:
        return entry_point
    return f"{os.path.realpath(file)}:{name}"


def digests(subject: Subject) -> list[str]:
    """Return a digest of the transcript of each of `SEEDS`."""
    env = subject.make()
    return [
        hashlib.sha256(repr(subject.play(env, seed)).encode("utf-8", "replace")).hexdigest()
        for seed in SEEDS
    ]


def _play_recipes() -> None:
    """Read recipes from stdin and write digests to stdout, in the other process."""
    results: dict[str, list[str] | str] = {}
    for recipe in pickle.loads(base64.b64decode(sys.stdin.buffer.read())):
        if isinstance(recipe, str):
            results |= transcripts([recipe])
            continue
        kind, name, entry_point, *arguments = recipe
        path = Path(entry_point.rpartition(":")[0]) if isinstance(entry_point, str) else Path()
        if path.suffix == ".py" and not (path.parent / "__init__.py").is_file():
            _run_script(path)
        if kind == "id":
            kwargs, wrappers = arguments
            if not is_file_id(name) and name not in environments.all():
                register(name, load_entry_point(entry_point, name), wrappers=wrappers)
            results[name] = _digests_or_error(Subject(name, kwargs))
        else:
            args, kwargs = arguments
            build = load_entry_point(entry_point, name)
            results[name] = _digests_or_error(Subject(build(*args, **kwargs)))
    sys.stdout.write("\n" + json.dumps(results) + "\n")


class _ScriptStopped(BaseException):
    """Raised by the checker in a script that another process runs for its classes."""


_running_script = False


def stop_script() -> None:
    """Stop a script that `_run_script` runs: all that the checker needs is defined by now."""
    if _running_script:
        raise _ScriptStopped


def _run_script(path: Path) -> None:
    """Import a file that belongs to no package, up to where it calls the checker."""
    global _running_script
    # multiprocessing's name for the main module of another process; not "__main__", so what a
    # script does as a program is not done again
    module = sys.modules["__mp_main__"] = ModuleType("__mp_main__")
    module.__file__ = str(path)
    sys.path.append(str(path.parent))
    _running_script = True
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except _ScriptStopped:
        pass
    finally:
        _running_script = False


def _digests_or_error(subject: Subject) -> list[str] | str:
    try:
        with subject.closing():
            return digests(subject)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - reported to the parent process
        failure = Failure.from_error(error, "")
        return f"{failure.kind}: {failure.message}"
