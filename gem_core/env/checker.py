"""Checker: whether an environment keeps the contract of `Env`, as small checks that each say in a sentence what is wrong.

    check_env("game:Wordle-v0-easy")            # by id; or an environment object, of which further ones are spawned
    find_problems("game:Wordle-v0-easy")        # the same, as data

`gem-rl check PATTERN` is the command. Determinism is checked in this process and in two others with different PYTHONHASHSEED,
where the same seed and actions must give the same transcript byte by byte.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable
from types import FrameType
from typing import Any

from gem_core.env.base import Env
from gem_core.env.ids import is_mixture
from gem_core.env.registry import EnvSpec, environments, make, register, spec
from gem_core.env.wrapper import Wrapper
from gem_core.errors import (
    ActionTypeError,
    CheckError,
    ConfigError,
    ContractError,
    GemError,
    MissingDependencyError,
    ResetNeededError,
)
from gem_core.wrappers.formats import format_of

__all__ = ["Problem", "check_env", "find_problems", "transcripts", "transcripts_elsewhere"]

SEEDS = (0, 1, 2)
TURNS = 12
"""How far an episode is played; the end is looked for further on, in one check only."""
LONGEST = 2000
ODD_TEXTS = (
    "",
    " ",
    "hello",
    "-1",
    "{" * 50,
    "é🙂\n\x00",
    "9" * 5000,
    "\\boxed{}",
    "\\boxed{hello}",
)
"""What a model may write, whatever it was asked for: as it stands, and in the environment's action format."""

Transcript = list[Any]
Maker = Callable[[], Env]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing an environment does not keep to."""

    check: str
    """The check that found it; where several say the same, all of them, as in `types, state`."""
    said: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.said}"


def check_env(env: str | Env, *, processes: bool = True) -> None:
    """Raises `CheckError` with a sentence for each problem. `processes`: also play in other processes."""
    problems = find_problems(env, processes=processes)
    if problems:
        raise CheckError(f"{_name(env)} has {len(problems)} problem(s):\n" + "\n".join(f"- {problem}" for problem in problems))


def find_problems(env: str | Env, *, processes: bool = True) -> list[Problem]:
    """What is wrong with an environment, given by id or as an object; an empty list where nothing is.

    Raises `MissingDependencyError` where it needs packages that are not installed.
    """
    subject = _Subject(env)
    try:
        with _closing(subject):
            subject.make()
    except MissingDependencyError:
        raise  # nothing can be said of it here
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; that is the finding
        return [Problem("making", f"{subject.name} cannot be made: {_told_of(error)}.")]  # each check would say the same
    for check in CHECKS:
        if check is check_other_processes and not processes:
            continue
        name = check.__name__.removeprefix("check_")
        try:
            with _closing(subject):
                for said in check(subject):
                    subject.note(said, name)
        except MissingDependencyError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            subject.note(f"{subject.name} raised {_told_of(error)}.", name)
    return [Problem(", ".join(names), said) for said, names in subject.found.items()]


class _Subject:
    """What is checked: makes fresh instances, and plays them whether they are async or not."""

    def __init__(self, env: str | Env) -> None:
        if not isinstance(env, (str, Env)):
            raise ConfigError(f"check_env() takes an environment or its id, not {type(env).__name__} {env!r}")
        self.given = env
        self.name = _name(env)
        self.spec: EnvSpec | None = spec(env) if isinstance(env, str) else env.spec
        self.found: dict[str, list[str]] = {}
        """What was said of it so far, and by which checks."""
        self._made: list[Env] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, said: str, check: str) -> None:
        checks = self.found.setdefault(said, [])
        if check not in checks:
            checks.append(check)

    def make(self) -> Env:
        made = make(self.given) if isinstance(self.given, str) else self.now(self.given.spawn())
        self._made.append(made)
        return made

    def close(self) -> None:
        made, self._made = self._made, []
        for env in made:
            self.now(env.close())
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def now(self, value: Any) -> Any:
        if not isawaitable(value):
            return value
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(value))

    def play(self, env: Env, seed: int, actions: Sequence[str] | None = None, turns: int = TURNS, extra: int = 0) -> Transcript:
        """One episode: what came back from the reset and from each step, with the actions."""
        observation, info = self.now(env.reset(seed=seed))
        found: Transcript = [["reset", observation, _told(info)]]
        for turn in range(turns if actions is None else len(actions)):
            for _ in range(extra):
                self.action(env)
            action = self.action(env) if actions is None else actions[turn]
            found.append([action, *self.step(env, action)])
            if env.ended:
                break
        return found

    def step(self, env: Env, action: str) -> list[Any]:
        observation, reward, terminated, truncated, info = self.now(env.step(action))
        return [observation, reward, terminated, truncated, _told(info)]

    def action(self, env: Env) -> str:
        """A random action; where the environment has none, what it says an action looks like, in its action format."""
        try:
            return env.sample_action()
        except NotImplementedError:
            form, example = format_of(env), env.action_example
            return example if form is None or form.parse(example) is not None else form.write(example)

    @property
    def deterministic(self) -> bool:
        return self.make().deterministic


# The checks. Each yields a full sentence for everything it finds.


def check_declarations(subject: _Subject) -> Iterator[str]:
    env = subject.make()
    if env.execution not in ("inline", "thread", "process"):
        yield f"{subject.name} declares execution = {env.execution!r}; it must be 'inline', 'thread' or 'process'."
    if subject.spec is not None and subject.spec.deterministic != env.deterministic:
        yield (
            f"{subject.name} is registered with deterministic={subject.spec.deterministic}, but its class says "
            f"{env.deterministic}; say the same in both places."
        )
    unwrapped = env.unwrapped
    if not isinstance(env.accepted_options, frozenset) or not all(isinstance(o, str) for o in env.accepted_options):
        yield f"{subject.name} declares option_names = {unwrapped.option_names!r}; it must be a frozenset of strings."
    if not isinstance(env.action_example, str) or not env.action_example:
        yield f"{subject.name} declares action_example = {env.action_example!r}; it must be a text that is not empty."


def check_types(subject: _Subject) -> Iterator[str]:
    env = subject.make()
    observation, info = subject.now(env.reset(seed=SEEDS[0]))
    if not observation:
        yield f"reset() of {subject.name} returned an empty observation; a model has nothing to go by."
    yield from _check_info(subject.name, "reset", info)
    for _ in range(TURNS):
        *_, info = subject.now(env.step(subject.action(env)))
        yield from _check_info(subject.name, "step", info)
        if env.ended:
            break


def check_order_of_calls(subject: _Subject) -> Iterator[str]:
    env = subject.make()
    if not _raises(ResetNeededError, lambda: subject.now(env.step("x"))):
        yield f"step() of {subject.name} before reset() did not raise ResetNeededError."
    subject.now(env.reset(seed=SEEDS[0]))
    if not _raises(ActionTypeError, lambda: subject.now(env.step(None))):  # type: ignore[arg-type]
        yield f"step(None) of {subject.name} did not raise ActionTypeError."
    turns = subject.spec.turns if subject.spec is not None else None
    for _ in range(turns or LONGEST):
        if env.ended:
            break
        subject.step(env, subject.action(env))
    if env.ended and not _raises(ResetNeededError, lambda: subject.now(env.step("x"))):
        yield f"step() of {subject.name} after the end of its episode did not raise ResetNeededError."
    if not env.ended:
        played = (
            "random actions"
            if env.unwrapped.plays_at_random
            else f"nothing but {subject.action(env)!r} (it has no sample_action())"
        )
        if turns:
            yield (
                f"{subject.name} is registered with turns={turns}, but an episode of {played} went on; "
                "return terminated or truncated by then, or register another number."
            )
        elif subject.spec is None or subject.spec.offline:  # where episodes end on a server, it is not for this side to mend
            yield (
                f"{subject.name} went on after {LONGEST} turns of {played}; return terminated or truncated at some turn, "
                "or put turn_limit around it."
            )
    subject.now(env.close())
    subject.now(env.close())


def check_seeding(subject: _Subject) -> Iterator[str]:
    if not subject.deterministic:
        return
    apart, later = [], []
    for seed in SEEDS:
        first, second = subject.make(), subject.make()
        expected = subject.play(first, seed)
        if subject.play(second, seed) != expected:
            apart.append(str(seed))
        subject.play(second, seed + 100)
        if subject.play(second, seed) != expected:
            later.append(str(seed))
    if apart:
        yield f"two instances of {subject.name} played different episodes with the same actions, from seed {', '.join(apart)}."
    elif later:
        yield (
            f"an instance of {subject.name} that had played before played another episode than a new one, "
            f"from seed {', '.join(later)}."
        )


def check_global_random_state(subject: _Subject) -> Iterator[str]:
    found: list[Transcript] = []
    for start in (1, 2):
        with _global_random(start) as touched:
            found.append(subject.play(subject.make(), SEEDS[0]))
        for name in touched:
            yield f"{subject.name} changed the global random state of {name}; draw from self.rng instead."
    if subject.deterministic and found[0] != found[1]:
        yield f"what {subject.name} does depends on the global random state; draw from self.rng instead."


def check_random_actions(subject: _Subject) -> Iterator[str]:
    env = subject.make()
    subject.now(env.reset(seed=SEEDS[0]))
    try:
        action = env.sample_action()
    except NotImplementedError:
        return  # not every environment can say what is legal
    if not isinstance(action, str):
        yield f"sample_action() of {subject.name} returned {type(action).__name__} {action!r}; an action is a string."
        return
    for seed in SEEDS:
        for turn in subject.play(env, seed):
            info = turn[-1]
            if "format_error" in info or "invalid_action" in info:
                yield f"sample_action() of {subject.name} gave {turn[0]!r}, which the environment does not take: {turn[1]!r}."
                return
    if not subject.deterministic:
        return
    actions = [turn[0] for turn in subject.play(env, SEEDS[0])[1:]]
    first, second = subject.play(env, SEEDS[0], actions), subject.play(env, SEEDS[0], actions)
    if first == second != subject.play(env, SEEDS[0], actions, extra=2):
        yield f"asking {subject.name} for sample_action() changes its episode; draw from self.action_rng there."


def check_odd_actions(subject: _Subject) -> Iterator[str]:
    env = subject.make()
    subject.now(env.reset(seed=SEEDS[0]))
    form = format_of(env)
    failed: dict[Any, tuple[str, list[str]]] = {}  # by kind and place: a message may quote the text
    for text in dict.fromkeys([*ODD_TEXTS, *(form.write(text) for text in ODD_TEXTS if form is not None)]):
        if env.ended:
            subject.now(env.reset(seed=SEEDS[0]))
        try:
            subject.step(env, text)
        except Exception as error:  # noqa: BLE001 - that is the finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            _, texts = failed.setdefault((type(error), where.filename, where.lineno), (_told_of(error), []))
            texts.append(repr(text if len(text) < 40 else text[:37] + "..."))
            env = subject.make()
            subject.now(env.reset(seed=SEEDS[0]))
    for told, texts in failed.values():
        always = f"{subject.name} raised {told}."
        more = f", and {len(texts) - 1} more such texts," if len(texts) > 1 else ""
        clause = "" if told.startswith(ContractError.__name__) else "; a model may write anything"
        yield always if always in subject.found else f"step({texts[0]}){more} of {subject.name} raised {told}{clause}."


def check_other_processes(subject: _Subject) -> Iterator[str]:
    if not subject.deterministic:
        return
    recipe = _recipe(subject)
    if recipe is None:
        return
    expected = _digests(subject)
    for hash_seed in (0, 1):
        found = transcripts_elsewhere([recipe], hash_seed)[subject.name]
        if isinstance(found, str):
            yield f"{subject.name} cannot be played in a process of its own: {found}."
            return
        if found != expected:
            seed = next(s for s, a, b in zip(SEEDS, found, expected, strict=True) if a != b)
            yield f"{subject.name} played another episode from seed {seed} in a process with PYTHONHASHSEED={hash_seed}."
            return


CHECKS: tuple[Callable[[_Subject], Iterator[str]], ...] = (
    check_declarations,
    check_types,
    check_order_of_calls,
    check_global_random_state,  # before what it leads to
    check_seeding,
    check_random_actions,
    check_odd_actions,
    check_other_processes,
)


# Other processes. Many environments are played in one, since starting it costs more than playing.


def transcripts(ids: Iterable[str]) -> dict[str, list[str] | str]:
    """For each id a digest of each seed's transcript, or what went wrong."""
    return {id: _played(_Subject(id)) for id in ids}


def transcripts_elsewhere(recipes: Sequence[str | tuple[Any, ...]], hash_seed: int) -> dict[str, list[str] | str]:
    """`transcripts` of a process of its own with that PYTHONHASHSEED; a recipe is an id."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", "from gem_core.env.checker import _answer; _answer()"]
    given = base64.b64encode(pickle.dumps(list(recipes)))
    done = subprocess.run(command, input=given, capture_output=True, env=environment)
    if done.returncode:
        raise RuntimeError(
            f"a process that plays environments ended with exit code {done.returncode}: {done.stderr.decode()[-2000:]}"
        )
    answer: dict[str, list[str] | str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _answer() -> None:
    """In the other process: recipes come in, digests go out."""
    found: dict[str, list[str] | str] = {}
    for recipe in pickle.loads(base64.b64decode(sys.stdin.buffer.read())):
        if isinstance(recipe, str):
            found |= transcripts([recipe])
        elif recipe[0] == "spec":
            known: EnvSpec = recipe[1]
            if known.id not in environments.all():
                register(known.id, known.entry_point, kwargs=known.kwargs, wrappers=known.wrappers)
            found |= transcripts([known.id])
        else:
            _, name, build, args, kwargs = recipe
            found[name] = _played(_Subject(build(*args, **kwargs)))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _recipe(subject: _Subject) -> str | tuple[Any, ...] | None:
    """How another process can make it; None where it cannot."""
    given = subject.given
    if isinstance(given, str):
        recipe: Any = given if is_mixture(given) else ("spec", subject.spec)
    else:
        if isinstance(given, Wrapper) or type(given).__module__ == "__main__":
            return None
        recipe = ("class", subject.name, type(given), *given._made_with)
    try:
        pickle.dumps(recipe)
    except Exception:  # noqa: BLE001 - a local class or a lambda: this process is the only one that has it
        return None
    return recipe  # type: ignore[no-any-return]


def _played(subject: _Subject) -> list[str] | str:
    try:
        with _closing(subject):
            return _digests(subject)
    except Exception as error:  # noqa: BLE001 - told to the process that asked
        return f"{type(error).__name__}: {error}"


def _digests(subject: _Subject) -> list[str]:
    env = subject.make()
    return [hashlib.sha256(repr(subject.play(env, seed)).encode("utf-8", "replace")).hexdigest() for seed in SEEDS]


# Small things.


def _name(env: str | Env) -> str:
    if isinstance(env, str):
        return env
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__name__


def _told_of(error: Exception) -> str:
    """An error and the author's place to look at, where one is known."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1]
    place = ""
    if isinstance(error, ContractError) and _is_ours(last):  # of what a method returned, which therefore is no frame
        owner: Any = last.f_locals.get("self")
        owner = owner if isinstance(owner, Env) else getattr(owner, "env", None)
        method = getattr(owner, "on_reset" if last.f_code.co_name == "_began" else "on_step", None)
        place = getattr(method, "__qualname__", "")
    else:
        shown = [frame for frame in frames if not _is_ours(frame)] if isinstance(error, GemError) else frames
        place = f"{os.path.basename(shown[-1].f_code.co_filename)}:{shown[-1].f_lineno}" if shown else ""
    return f"{type(error).__name__}: {str(error).rstrip('.')}" + (f" ({place})" if place else "")


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "gem_core"


def _told(info: Mapping[str, Any]) -> dict[str, Any]:
    """An info in a form that compares and prints the same everywhere."""
    return {key: repr(info[key]) for key in sorted(info)}


def _check_info(name: str, where: str, info: Mapping[Any, Any]) -> Iterator[str]:
    odd = [key for key in info if not isinstance(key, str)]
    if odd:
        yield f"{where}() of {name} returned an info with the key {odd[0]!r}; keys are strings."
    if "success" in info and not isinstance(info["success"], bool):
        yield f"{where}() of {name} returned success = {info['success']!r}; it must be a bool."
    try:
        pickle.dumps(dict(info))
    except Exception as error:  # noqa: BLE001 - whatever pickling raises is the finding
        yield f"{where}() of {name} returned an info that cannot be pickled: {type(error).__name__}: {error}."


def _raises(kind: type[Exception], call: Callable[[], Any]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


@contextmanager
def _closing(subject: _Subject) -> Iterator[None]:
    try:
        yield
    finally:
        subject.close()


@contextmanager
def _global_random(start: int) -> Iterator[list[str]]:
    """Seeds the global generators, notes which of them were drawn from or seeded meanwhile, and puts them back."""
    touched: list[str] = []
    numpy: Any = sys.modules.get("numpy")
    kept = random.getstate()
    kept_numpy = numpy.random.get_state() if numpy is not None else None
    random.seed(start)
    before = random.getstate()
    if numpy is not None:
        numpy.random.seed(start)
        before_numpy = pickle.dumps(numpy.random.get_state())
    try:
        yield touched
        if random.getstate() != before:
            touched.append("the module random")
        if numpy is not None and pickle.dumps(numpy.random.get_state()) != before_numpy:
            touched.append("numpy.random")
    finally:
        random.setstate(kept)
        if numpy is not None:
            numpy.random.set_state(kept_numpy)


async def _awaited(value: Any) -> Any:
    return await value
