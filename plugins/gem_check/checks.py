"""Checks: each takes an environment under check and yields a sentence per problem."""

from __future__ import annotations

import pickle
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gem_check.problems import describe
from gem_check.subject import SEEDS, TURNS, Subject, Transcript
from gem_check.transcripts import digests, recipe_of, transcripts_elsewhere
from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.errors import ActionTypeError, ContractError, PolicyError, ResetNeededError
from gem_core.policies.players import expert_of
from gem_core.rollout.episode_runner import ROLES

__all__ = ["CHECKS", "CheckedEnv", "check_other_processes"]

LONGEST = 2000
"""An episode with more turns counts as endless."""
LONGEST_OBSERVATION = 200_000
"""Characters. No model that anyone trains reads as much in one turn."""
SLOWEST_INLINE = 0.02
"""Seconds that a step may take on the event loop, where all other episodes wait for it."""
ODD_TEXTS = (
    "",
    " ",
    "hello",
    "-1",
    "{" * 50,
    "é🙂\n\x00",
    "9" * 5000,
    "\u00b2",  # a superscript: isdigit() is true, int() raises
    "\\boxed{}",
    "\\boxed{hello}",
)
"""Unusual actions a model may write: sent unchanged, and in the environment's action format."""


class CheckedEnv(Subject):
    """An environment under check, with the problems and notes reported so far."""

    def __init__(self, env: str | Env, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)
        self.problems: dict[str, list[str]] = {}
        """Maps each message to the checks that reported it."""
        self.notes: list[str] = []

    def report(self, message: str, check: str) -> None:
        """Note a problem, once per check."""
        checks = self.problems.setdefault(message, [])
        if check not in checks:
            checks.append(check)


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


def check_observations(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    for seed in SEEDS:
        transcript = subject.play(env, seed)
        for method, observation in [
            ("reset", transcript[0][1]),
            *(("step", turn[1]) for turn in transcript[1:]),
        ]:
            if len(observation) > LONGEST_OBSERVATION:
                yield (
                    f"{method}() of {subject.name} returned an observation of "
                    f"{len(observation):,} characters, which fits into no context; "
                    f"return at most {LONGEST_OBSERVATION:,}."
                )
                return
            try:
                observation.encode()
            except UnicodeEncodeError as error:
                yield (
                    f"{method}() of {subject.name} returned the character "
                    f"{observation[error.start]!r}, a lone surrogate, which no tokenizer reads; "
                    "decode bytes with errors='replace'."
                )
                return


def check_speed(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    if env.unwrapped.execution != "inline":
        return
    seconds = []
    for seed in SEEDS:
        subject.result(env.reset(seed=seed))
        for _ in range(TURNS):
            action, began = subject.action(env), time.perf_counter()
            subject.step(env, action)
            seconds.append(time.perf_counter() - began)
            if env.ended:
                break
    if min(seconds) > SLOWEST_INLINE:  # the fastest: one slow step may be the machine's fault
        yield (
            f"{subject.name} declares execution = 'inline', but its fastest step took "
            f"{min(seconds):.2f} s, and all other episodes wait for it; declare 'thread'."
        )


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
        subject.notes.append(
            f"{subject.name} has no sample_action(), so only the action {subject.action(env)!r} "
            "and unusual texts were tried; define sample_action() to check more states."
        )
        return
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


def check_expert(subject: CheckedEnv) -> Iterator[str]:
    env = subject.make()
    for seed in SEEDS:
        subject.result(env.reset(seed=seed))
        expert = expert_of(env)
        if expert is None:
            continue
        if not callable(expert):
            yield f"expert of {subject.name} is {expert!r}; it must be a method."
            return
        try:
            problem = _play_expert(subject, env, expert())
        except PolicyError as error:  # for example a dataset without a solution for this row
            subject.notes.append(f"the expert of {subject.name} did not play seed {seed}: {error}.")
            return
        if problem:
            yield f"expert() of {subject.name} {problem} (seed {seed})."
            return


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
                (type(error), where.filename, where.lineno), (describe(error), [])
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
    """Play the same episodes in two other processes, with different set orders."""
    if not subject.deterministic:
        return
    recipe = recipe_of(subject)
    if recipe is None:
        subject.notes.append(
            f"{subject.name} was not played in other processes, which cannot import it; "
            "define the class, and what it is made with, at the top level of a file."
        )
        return
    expected = digests(subject)
    seconds = 3 * subject.step_limit
    for hash_seed in (0, 1):
        subject.allow(seconds + 10)
        result = transcripts_elsewhere([recipe], hash_seed, seconds)[subject.name]
        if isinstance(result, str):
            yield f"{subject.name} cannot be played in another process: {result}."
            return
        if result != expected:
            seed = next(s for s, a, b in zip(SEEDS, result, expected, strict=True) if a != b)
            yield (
                f"{subject.name} played a different episode from seed {seed} "
                f"in a process with PYTHONHASHSEED={hash_seed}; the usual cause is the order "
                "of a set or a hash of a string: sort the set."
            )
            return


CHECKS: tuple[Callable[[CheckedEnv], Iterator[str]], ...] = (
    check_declarations,
    check_types,
    check_observations,
    check_speed,
    check_order_of_calls,
    check_global_random_state,  # before the checks that fail as a result
    check_seeding,
    check_random_actions,
    check_expert,
    check_odd_actions,
    check_other_processes,
)


def _check_info(name: str, where: str, info: Mapping[Any, Any]) -> Iterator[str]:
    other_keys = [key for key in info if not isinstance(key, str)]
    if other_keys:
        yield (
            f"{where}() of {name} returned an info with the key {other_keys[0]!r}; "
            "keys must be strings."
        )
    if "success" in info and not isinstance(info["success"], bool):
        yield f"{where}() of {name} returned success = {info['success']!r}; it must be a bool."
    for key in ("system", "suffix") if where == "reset" else ("suffix",):
        if not isinstance(info.get(key), (str, type(None))):
            yield f"{where}() of {name} returned {key} = {info[key]!r}; it must be a string."
    if "role" in info and info["role"] not in ROLES:
        yield (
            f"{where}() of {name} returned role = {info['role']!r}; "
            f"it must be one of {', '.join(ROLES)}."
        )
    try:
        pickle.dumps(dict(info))
    except Exception as error:  # noqa: BLE001 - reported as a problem
        yield (
            f"{where}() of {name} returned an info that cannot be pickled: "
            f"{type(error).__name__}: {error}."
        )


def _play_expert(subject: CheckedEnv, env: Env, actions: Any) -> str:
    """Play the actions of an expert until the episode ends; return the problem, or ""."""
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        return f"returned {actions!r}; it must yield actions, or return a list of them"
    turns = (subject.spec.turns if subject.spec is not None else None) or LONGEST
    form, actions = format_of(env), iter(actions)
    for _ in range(turns):
        if getattr(env, "text_wanted", False):  # a wrapper asks for a plan or notes
            subject.step(env, env.sample_action())
        else:
            try:
                action = next(actions)
            except StopIteration:
                return "ran out of actions before the episode ended; yield actions until it ends"
            if not isinstance(action, str):
                return f"yielded {type(action).__name__} {action!r}; an action must be a string"
            subject.step(env, action if form is None else form.write(action))
        if env.ended:
            return ""
    return f"did not end the episode within {turns} turns"


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
