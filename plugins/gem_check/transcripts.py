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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.env.ids import is_mixture
from gem_core.env.maybe_async import Waiter
from gem_core.env.registry import EnvSpec, environments, make, register, spec
from gem_core.env.wrapper import Wrapper
from gem_core.errors import ConfigError
from gem_core.types import Failure

__all__ = [
    "SEEDS",
    "TURNS",
    "Subject",
    "Transcript",
    "digests",
    "env_name",
    "recipe_of",
    "transcripts",
    "transcripts_elsewhere",
]

SEEDS = (0, 1, 2)
TURNS = 12
"""The number of turns played per episode."""

Transcript = list[Any]


class Subject:
    """An environment to play: makes fresh instances and plays them, sync or async."""

    def __init__(self, env: str | Env) -> None:
        if not isinstance(env, (str, Env)):
            raise ConfigError(
                f"check_env() takes an environment or its id, got {type(env).__name__} {env!r}"
            )
        self.source = env
        self.name = env_name(env)
        self.spec: EnvSpec | None = spec(env) if isinstance(env, str) else env.spec
        self._made: list[Env] = []
        self._waiter = Waiter()

    def make(self) -> Env:
        """Make a fresh instance; `closing` closes it."""
        env = make(self.source) if isinstance(self.source, str) else self.source.spawn()
        self._made.append(env)
        return env

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close, on exit, the instances made inside."""
        try:
            yield
        finally:
            made, self._made = self._made, []
            for env in made:
                self.result(env.close())
            self._waiter.close()

    def result(self, value: Any) -> Any:
        """Wait for an awaitable; return other values unchanged."""
        return self._waiter.result(value)

    def play(
        self,
        env: Env,
        seed: int,
        actions: Sequence[str] | None = None,
        turns: int = TURNS,
        extra: int = 0,
    ) -> Transcript:
        """Play one episode, by default with random actions.

        `extra` actions are sampled and dropped at each turn.
        """
        observation, info = self.result(env.reset(seed=seed))
        transcript: Transcript = [["reset", observation, _comparable(info)]]
        for turn in range(turns if actions is None else len(actions)):
            for _ in range(extra):
                self.action(env)
            action = self.action(env) if actions is None else actions[turn]
            transcript.append([action, *self.step(env, action)])
            if env.ended:
                break
        return transcript

    def step(self, env: Env, action: str) -> list[Any]:
        """Take one action."""
        observation, reward, terminated, truncated, info = self.result(env.step(action))
        return [observation, reward, terminated, truncated, _comparable(info)]

    def action(self, env: Env) -> str:
        """Return a random action, or the formatted `action_example` without `sample_action`."""
        try:
            return env.sample_action()
        except NotImplementedError:
            form, example = format_of(env), env.action_example
            if form is None or form.parse(example) is not None:
                return example
            return form.write(example)

    @property
    def deterministic(self) -> bool:
        """The declaration of a fresh instance."""
        return self.make().deterministic


def transcripts(ids: Iterable[str]) -> dict[str, list[str] | str]:
    """Return, for each id, a digest of each seed's transcript, or an error message."""
    return {id: _digests_or_error(Subject(id)) for id in ids}


def transcripts_elsewhere(
    recipes: Sequence[str | tuple[Any, ...]], hash_seed: int
) -> dict[str, list[str] | str]:
    """Return `transcripts` from a new process with that PYTHONHASHSEED.

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
    done = subprocess.run(command, input=stdin, capture_output=True, env=environment)
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
    if isinstance(source, str):
        recipe: Any = source if is_mixture(source) else ("spec", subject.spec)
    else:
        if isinstance(source, Wrapper) or type(source).__module__ == "__main__":
            return None
        recipe = ("class", subject.name, type(source), *source._made_with)
    try:
        pickle.dumps(recipe)
    except Exception:  # noqa: BLE001 - for example a local class or a lambda
        return None
    return recipe  # type: ignore[no-any-return]


def digests(subject: Subject) -> list[str]:
    """Return a digest of the transcript of each of `SEEDS`."""
    env = subject.make()
    return [
        hashlib.sha256(repr(subject.play(env, seed)).encode("utf-8", "replace")).hexdigest()
        for seed in SEEDS
    ]


def env_name(env: str | Env) -> str:
    """Return the id of an environment, or its class name if it has no id."""
    if isinstance(env, str):
        return env
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__


def _play_recipes() -> None:
    """Read recipes from stdin and write digests to stdout, in the other process."""
    results: dict[str, list[str] | str] = {}
    for recipe in pickle.loads(base64.b64decode(sys.stdin.buffer.read())):
        if isinstance(recipe, str):
            results |= transcripts([recipe])
        elif recipe[0] == "spec":
            env: EnvSpec = recipe[1]
            if env.id not in environments.all():
                register(env.id, env.entry_point, kwargs=env.kwargs, wrappers=env.wrappers)
            results |= transcripts([env.id])
        else:
            _, name, build, args, kwargs = recipe
            results[name] = _digests_or_error(Subject(build(*args, **kwargs)))
    sys.stdout.write("\n" + json.dumps(results) + "\n")


def _digests_or_error(subject: Subject) -> list[str] | str:
    try:
        with subject.closing():
            return digests(subject)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - reported to the parent process
        failure = Failure.from_error(error, "")
        return f"{failure.kind}: {failure.message}"


def _comparable(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info that compares and prints the same in every process."""
    return {key: repr(info[key]) for key in sorted(info)}
