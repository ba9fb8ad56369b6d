"""Checker: whether an environment keeps the contract of `Env`. Each check returns one sentence per problem.

    check_env("game:Wordle-v0-easy")            # by id; or an environment object, of which further ones are spawned
    find_problems("game:Wordle-v0-easy")        # the same, as data

`gem-rl check PATTERN` is the command. Determinism is checked in this process and in two others with different PYTHONHASHSEED,
where the same seed and actions must give the same transcript byte by byte.
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

__all__ = ["CHECKS", "Problem", "check_env", "find_problems"]

LONGEST = 2000
"""The turns after which an episode counts as endless."""
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
"""What a model may write: sent as it is, and in the environment's action format."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation of the contract."""

    check: str
    """The check that found it; several if they report the same, as in `types, seeding`."""
    message: str

    def __str__(self) -> str:
        return f"[{self.check}] {self.message}"


def check_env(env: str | Env, *, processes: bool = True) -> None:
    """Raise `CheckError` with a sentence for each problem. `processes`: also play in other processes."""
    problems = find_problems(env, processes=processes)
    if problems:
        raise CheckError(
            f"{env_name(env)} has {len(problems)} problem(s):\n"
            + "\n".join(f"- {problem}" for problem in problems)
        )


def find_problems(env: str | Env, *, processes: bool = True) -> list[Problem]:
    """Return the problems of an environment, given by id or as an object; an empty list if there are none.

    Raises `MissingDependencyError` if it needs packages that are not installed.
    """
    subject = CheckedEnv(env)
    try:
        with subject.closing():
            subject.make()
    except MissingDependencyError:
        raise  # it cannot be checked here
    except Exception as error:  # noqa: BLE001 - an environment may raise anything; that is the problem to report
        return [
            Problem("making", f"{subject.name} cannot be made: {_describe(error)}.")
        ]  # each check would report the same
    for check in CHECKS:
        if check is check_other_processes and not processes:
            continue
        name = check.__name__.removeprefix("check_")
        try:
            with subject.closing():
                for message in check(subject):
                    subject.report(message, name)
        except MissingDependencyError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            subject.report(f"{subject.name} raised {_describe(error)}.", name)
    return [Problem(", ".join(checks), message) for message, checks in subject.problems.items()]


class CheckedEnv(Subject):
    """An environment under check, with the problems reported so far."""

    def __init__(self, env: str | Env) -> None:
        super().__init__(env)
        self.problems: dict[str, list[str]] = {}
        """The checks that reported each message."""

    def report(self, message: str, check: str) -> None:
        """Note a problem, once per check."""
        checks = self.problems.setdefault(message, [])
        if check not in checks:
            checks.append(check)


# The checks. Each yields a full sentence for every problem.


def check_declarations(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    if env.execution not in ("inline", "thread", "process"):
        yield f"{subject.name} declares execution = {env.execution!r}; it must be 'inline', 'thread' or 'process'."
    if subject.spec is not None and subject.spec.deterministic != env.deterministic:
        yield (
            f"{subject.name} is registered with deterministic={subject.spec.deterministic}, but its class says "
            f"{env.deterministic}; say the same in both places."
        )
    unwrapped = env.unwrapped
    if not isinstance(env.accepted_options, frozenset) or not all(
        isinstance(o, str) for o in env.accepted_options
    ):
        yield f"{subject.name} declares option_names = {unwrapped.option_names!r}; it must be a frozenset of strings."
    if not isinstance(env.action_example, str) or not env.action_example:
        yield f"{subject.name} declares action_example = {env.action_example!r}; it must be a text that is not empty."


def check_types(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    observation, info = subject.result(env.reset(seed=SEEDS[0]))
    if not observation:
        yield f"reset() of {subject.name} returned an empty observation; a model has nothing to go by."
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
        elif (
            subject.spec is None or subject.spec.offline
        ):  # where episodes end on a server, it is not for this side to mend
            yield (
                f"{subject.name} went on after {LONGEST} turns of {played}; return terminated or truncated at some turn, "
                "or put turn_limit around it."
            )
    subject.result(env.close())
    subject.result(env.close())


def check_seeding(subject: CheckedEnv) -> Iterator[str]:
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


def check_global_random_state(subject: CheckedEnv) -> Iterator[str]:
    played: list[Transcript] = []
    for start in (1, 2):
        with _global_random(start) as touched:
            played.append(subject.play(subject.make(), SEEDS[0]))
        for name in touched:
            yield f"{subject.name} changed the global random state of {name}; draw from self.rng instead."
    if subject.deterministic and played[0] != played[1]:
        yield f"what {subject.name} does depends on the global random state; draw from self.rng instead."


def check_random_actions(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    subject.result(env.reset(seed=SEEDS[0]))
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


def check_odd_actions(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    subject.result(env.reset(seed=SEEDS[0]))
    form = format_of(env)
    failed: dict[Any, tuple[str, list[str]]] = {}  # by kind and place: a message may quote the text
    for text in dict.fromkeys(
        [*ODD_TEXTS, *(form.write(text) for text in ODD_TEXTS if form is not None)]
    ):
        if env.ended:
            subject.result(env.reset(seed=SEEDS[0]))
        try:
            subject.step(env, text)
        except Exception as error:  # noqa: BLE001 - that is the problem to report
            where = traceback.extract_tb(error.__traceback__)[-1]
            _, texts = failed.setdefault(
                (type(error), where.filename, where.lineno), (_describe(error), [])
            )
            texts.append(repr(text if len(text) < 40 else text[:37] + "..."))
            env = subject.make()
            subject.result(env.reset(seed=SEEDS[0]))
    for description, texts in failed.values():
        always = f"{subject.name} raised {description}."
        more = f", and {len(texts) - 1} more such texts," if len(texts) > 1 else ""
        clause = (
            "" if description.startswith(ContractError.__name__) else "; a model may write anything"
        )
        yield (
            always
            if always in subject.problems
            else f"step({texts[0]}){more} of {subject.name} raised {description}{clause}."
        )


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
            yield f"{subject.name} cannot be played in a process of its own: {result}."
            return
        if result != expected:
            seed = next(s for s, a, b in zip(SEEDS, result, expected, strict=True) if a != b)
            yield f"{subject.name} played another episode from seed {seed} in a process with PYTHONHASHSEED={hash_seed}."
            return


CHECKS: tuple[Callable[[CheckedEnv], Iterator[str]], ...] = (
    check_declarations,
    check_types,
    check_order_of_calls,
    check_global_random_state,  # before what it leads to
    check_seeding,
    check_random_actions,
    check_odd_actions,
    check_other_processes,
)


def _describe(error: Exception) -> str:
    """An error and the author's place to look at, where one is known."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1]
    place = ""
    if isinstance(error, ContractError) and _is_ours(
        last
    ):  # of what a method returned, which therefore is no frame
        owner: Any = last.f_locals.get("self")
        owner = owner if isinstance(owner, Env) else getattr(owner, "env", None)
        method = getattr(
            owner, "on_reset" if last.f_code.co_name == "_check_reset" else "on_step", None
        )
        place = getattr(method, "__qualname__", "")
    else:
        shown = (
            [frame for frame in frames if not _is_ours(frame)]
            if isinstance(error, GemError)
            else frames
        )
        place = (
            f"{os.path.basename(shown[-1].f_code.co_filename)}:{shown[-1].f_lineno}"
            if shown
            else ""
        )
    return f"{type(error).__name__}: {str(error).rstrip('.')}" + (f" ({place})" if place else "")


def _is_ours(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("gem_core", "gem_check")


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
