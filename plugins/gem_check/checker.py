"""Environment checker: checks that an environment keeps the `Env` contract.

    check_env("game:Wordle-v0-easy")       # by id, or an environment object, which it spawns
    find_problems("game:Wordle-v0-easy")   # return the problems as data

The command is `gem-rl check PATTERN`. Determinism is checked in this process and in two others with
different PYTHONHASHSEED: the same seed and actions must give byte-identical transcripts.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gem_check.transcripts import (
    SEEDS,
    TURNS,
    Subject,
    Transcript,
    digests,
    env_name,
    recipe_of,
    transcripts_elsewhere,
)
from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.errors import (
    ActionTypeError,
    CheckError,
    ContractError,
    GemError,
    MissingDependencyError,
    ResetNeededError,
)
from gem_core.types import Failure

__all__ = ["CHECKS", "Problem", "check_env", "find_problems"]

LONGEST = 2000
"""An episode with more turns counts as endless."""
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
"""Unusual actions a model may write: sent unchanged, and in the environment's action format."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of the contract."""

    check: str
    """The name of the check; several names if they report the same, such as `types, seeding`."""
    message: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.message}"


def check_env(env: str | Env, *, processes: bool = True) -> None:
    """Raise `CheckError` with a sentence per problem. `processes` also plays in other processes."""
    problems = find_problems(env, processes=processes)
    if problems:
        listing = "\n".join(f"- {problem}" for problem in problems)
        raise CheckError(f"{env_name(env)} has {len(problems)} problem(s):\n{listing}")


def find_problems(env: str | Env, *, processes: bool = True) -> list[Problem]:
    """Return the problems of an environment (an id or an object); an empty list if it has none.

    Raises `MissingDependencyError` if it needs packages that are not installed.
    """
    subject = CheckedEnv(env)
    try:
        with subject.closing():
            subject.make()
    except (MissingDependencyError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - reported as a problem
        # Each check would report this error again.
        return [Problem("making", f"{subject.name} cannot be made: {_describe(error)}.")]
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
            subject.report(f"{subject.name} raised {_describe(error)}.", name)
    return [Problem(", ".join(checks), message) for message, checks in subject.problems.items()]


class CheckedEnv(Subject):
    """An environment under check, with the problems reported so far."""

    def __init__(self, env: str | Env) -> None:
        super().__init__(env)
        self.problems: dict[str, list[str]] = {}
        """Maps each message to the checks that reported it."""

    def report(self, message: str, check: str) -> None:
        """Note a problem, once per check."""
        checks = self.problems.setdefault(message, [])
        if check not in checks:
            checks.append(check)


# The checks. Each yields a complete sentence per problem.


def check_declarations(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    if env.execution not in ("inline", "thread", "process"):
        yield (
            f"{subject.name} declares execution = {env.execution!r}; "
            "it must be 'inline', 'thread' or 'process'."
        )
    if subject.spec is not None and subject.spec.deterministic != env.deterministic:
        yield (
            f"{subject.name} is registered with deterministic={subject.spec.deterministic}, "
            f"but its class declares {env.deterministic}; declare the same value in both places."
        )
    options = env.accepted_options
    if not isinstance(options, frozenset) or not all(isinstance(o, str) for o in options):
        yield (
            f"{subject.name} declares option_names = {env.unwrapped.option_names!r}; "
            "it must be a frozenset of strings."
        )
    if not isinstance(env.action_example, str) or not env.action_example:
        yield (
            f"{subject.name} declares action_example = {env.action_example!r}; "
            "it must be a non-empty string."
        )


def check_types(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    observation, info = subject.result(env.reset(seed=SEEDS[0]))
    if not observation:
        yield f"reset() of {subject.name} returned an empty observation; return a prompt."
    yield from _check_info(subject.name, "reset", info)
    for _ in range(TURNS):
        *_, info = subject.result(env.step(subject.action(env)))
        yield from _check_info(subject.name, "step", info)
        if env.ended:
            break


def check_order_of_calls(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    if not _raises(ResetNeededError, lambda: subject.result(env.step("x"))):
        yield f"step() of {subject.name} before reset() did not raise ResetNeededError."
    subject.result(env.reset(seed=SEEDS[0]))
    if not _raises(ActionTypeError, lambda: subject.result(env.step(None))):  # type: ignore[arg-type]
        yield f"step(None) of {subject.name} did not raise ActionTypeError."
    turns = subject.spec.turns if subject.spec is not None else None
    for _ in range(turns or LONGEST):
        if env.ended:
            break
        subject.step(env, subject.action(env))
    if env.ended and not _raises(ResetNeededError, lambda: subject.result(env.step("x"))):
        yield f"step() of {subject.name} after its episode ended did not raise ResetNeededError."
    if not env.ended:
        played = "random actions"
        if not env.unwrapped.plays_at_random:
            played = f"the action {subject.action(env)!r} (it has no sample_action())"
        if turns:
            yield (
                f"{subject.name} is registered with turns={turns}, but an episode with {played} "
                "did not end by then; return terminated or truncated, or register another number."
            )
        elif subject.spec is None or subject.spec.offline:  # a server ends its own episodes
            yield (
                f"{subject.name} did not end after {LONGEST} turns with {played}; "
                "return terminated or truncated at some turn, or use the wrapper turn_limit."
            )
    subject.result(env.close())
    subject.result(env.close())


def check_seeding(subject: CheckedEnv) -> Iterator[str]:
    if not subject.deterministic:
        return
    new_differs, used_differs = [], []
    for seed in SEEDS:
        first, second = subject.make(), subject.make()
        expected = subject.play(first, seed)
        if subject.play(second, seed) != expected:
            new_differs.append(str(seed))
        subject.play(second, seed + 100)
        if subject.play(second, seed) != expected:
            used_differs.append(str(seed))
    if new_differs:
        yield (
            f"two instances of {subject.name} played different episodes with the same actions, "
            f"from seed {', '.join(new_differs)}."
        )
    elif used_differs:
        yield (
            f"a new and a used instance of {subject.name} played different episodes "
            f"with the same actions, from seed {', '.join(used_differs)}."
        )


def check_global_random_state(subject: CheckedEnv) -> Iterator[str]:
    played: list[Transcript] = []
    for global_seed in (1, 2):
        with _global_random(global_seed) as changed:
            played.append(subject.play(subject.make(), SEEDS[0]))
        for name in changed:
            yield (
                f"{subject.name} changed the global random state of {name}; "
                "draw from self.rng instead."
            )
    if subject.deterministic and played[0] != played[1]:
        yield (
            f"episodes of {subject.name} depend on the global random state; "
            "draw from self.rng instead."
        )


def check_random_actions(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    subject.result(env.reset(seed=SEEDS[0]))
    try:
        action = env.sample_action()
    except NotImplementedError:
        return  # optional
    if not isinstance(action, str):
        yield (
            f"sample_action() of {subject.name} returned {type(action).__name__} {action!r}; "
            "it must return a string."
        )
        return
    for seed in SEEDS:
        for turn in subject.play(env, seed):
            info = turn[-1]
            if "format_error" in info or "invalid_action" in info:
                yield (
                    f"sample_action() of {subject.name} returned {turn[0]!r}, "
                    f"which the environment rejects: {turn[1]!r}."
                )
                return
    if not subject.deterministic:
        return
    actions = [turn[0] for turn in subject.play(env, SEEDS[0])[1:]]
    first, second = subject.play(env, SEEDS[0], actions), subject.play(env, SEEDS[0], actions)
    if first == second != subject.play(env, SEEDS[0], actions, extra=2):
        yield (
            f"sample_action() of {subject.name} changes the episode; "
            "draw from self.action_rng instead."
        )


def check_odd_actions(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    subject.result(env.reset(seed=SEEDS[0]))
    form = format_of(env)
    # Keyed by error type and line, because the message may quote the text.
    failed: dict[Any, tuple[str, list[str]]] = {}
    formatted = [form.write(text) for text in ODD_TEXTS] if form is not None else []
    for text in dict.fromkeys([*ODD_TEXTS, *formatted]):
        if env.ended:
            subject.result(env.reset(seed=SEEDS[0]))
        try:
            subject.step(env, text)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - reported as a problem
            where = traceback.extract_tb(error.__traceback__)[-1]
            _, texts = failed.setdefault(
                (type(error), where.filename, where.lineno), (_describe(error), [])
            )
            texts.append(repr(text if len(text) < 40 else text[:37] + "..."))
            env = subject.make()
            subject.result(env.reset(seed=SEEDS[0]))
    for description, texts in failed.values():
        reported = f"{subject.name} raised {description}."  # by a check with ordinary actions
        more = f", and {len(texts) - 1} more such texts," if len(texts) > 1 else ""
        violation = description.startswith(ContractError.__name__)
        reason = "" if violation else "; a model may write anything"
        message = f"step({texts[0]}){more} of {subject.name} raised {description}{reason}."
        yield reported if reported in subject.problems else message


def check_other_processes(subject: CheckedEnv) -> Iterator[str]:
    if not subject.deterministic:
        return
    recipe = recipe_of(subject)
    if recipe is None:
        return
    expected = digests(subject)
    for hash_seed in (0, 1):
        result = transcripts_elsewhere([recipe], hash_seed)[subject.name]
        if isinstance(result, str):
            yield f"{subject.name} cannot be played in another process: {result}."
            return
        if result != expected:
            seed = next(s for s, a, b in zip(SEEDS, result, expected, strict=True) if a != b)
            yield (
                f"{subject.name} played a different episode from seed {seed} "
                f"in a process with PYTHONHASHSEED={hash_seed}."
            )
            return


CHECKS: tuple[Callable[[CheckedEnv], Iterator[str]], ...] = (
    check_declarations,
    check_types,
    check_order_of_calls,
    check_global_random_state,  # before the checks that fail as a result
    check_seeding,
    check_random_actions,
    check_odd_actions,
    check_other_processes,
)


def _describe(error: BaseException) -> str:
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


def _check_info(name: str, where: str, info: Mapping[Any, Any]) -> Iterator[str]:
    other_keys = [key for key in info if not isinstance(key, str)]
    if other_keys:
        yield (
            f"{where}() of {name} returned an info with the key {other_keys[0]!r}; "
            "keys must be strings."
        )
    if "success" in info and not isinstance(info["success"], bool):
        yield f"{where}() of {name} returned success = {info['success']!r}; it must be a bool."
    try:
        pickle.dumps(dict(info))
    except Exception as error:  # noqa: BLE001 - reported as a problem
        yield (
            f"{where}() of {name} returned an info that cannot be pickled: "
            f"{type(error).__name__}: {error}."
        )


def _raises(kind: type[Exception], call: Callable[[], Any]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


@contextmanager
def _global_random(seed: int) -> Iterator[list[str]]:
    """Seed the global generators, yield a list of those that change, and restore them."""
    changed: list[str] = []
    numpy: Any = sys.modules.get("numpy")
    saved = random.getstate()
    saved_numpy = numpy.random.get_state() if numpy is not None else None
    random.seed(seed)
    before = random.getstate()
    if numpy is not None:
        numpy.random.seed(seed)
        before_numpy = pickle.dumps(numpy.random.get_state())
    try:
        yield changed
        if random.getstate() != before:
            changed.append("the module random")
        if numpy is not None and pickle.dumps(numpy.random.get_state()) != before_numpy:
            changed.append("numpy.random")
    finally:
        random.setstate(saved)
        if numpy is not None:
            numpy.random.set_state(saved_numpy)
