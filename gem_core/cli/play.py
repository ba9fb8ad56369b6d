"""`gem-rl play`: a person plays an environment in the terminal, or a random player does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import TracebackType
from typing import Any, cast

from gem_core.cli.arguments import env_arguments, json_object
from gem_core.cli.terminal import say
from gem_core.env.action_format import format_of
from gem_core.env.base import Env
from gem_core.env.maybe_async import Waiter
from gem_core.env.registry import make
from gem_core.env.wrapper import Wrapper
from gem_core.env.wrapper_stack import parse_wrappers, wrappers
from gem_core.errors import ConfigError, UnknownNameError

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "play an environment in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to play, from where, and who plays."""
    parser.add_argument(
        "id", help="an environment id, or a mixture such as '2*game:A-v0 + 1*game:B-v0'"
    )
    parser.add_argument(
        "--seed", type=int, help="the start; drawn, and shown, where it is left out"
    )
    parser.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    parser.add_argument(
        "--tools",
        default="",
        metavar="A,B(K=V)",
        help="tools by name, as in python,search(index='FOLDER')",
    )
    parser.add_argument(
        "--options", default="", metavar="JSON", help="options of the reset, as a JSON object"
    )
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment, as a JSON object"
    )
    parser.add_argument("--max-turns", type=int, metavar="N", help="leave after this many turns")
    parser.add_argument(
        "--random", action="store_true", help="let a random player choose among the legal actions"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="send what is typed as it is, without the action format around it",
    )


def run(args: argparse.Namespace) -> int:
    """Plays one episode."""
    if args.max_turns is not None and args.max_turns < 1:
        raise ConfigError(f"--max-turns must be 1 or more; given: {args.max_turns}")
    options, arguments = json_object("--options", args.options), env_arguments(args.args)
    with _Table(
        make(args.id, wrappers=[*parse_wrappers(args.wrappers), *_tools(args.tools)], **arguments)
    ) as table:
        try:
            _play(table, args, options)
        except EOFError:
            say("\nleft.")
    return 0


def _play(table: _Table, args: argparse.Namespace, options: Mapping[str, Any]) -> None:
    observation, info = table.reset(seed=args.seed, options=options)
    say(
        f"{args.id}, seed {table.env.seed}"
        + (f", playing {info['env_id']}" if info.get("env_id") else "")
    )
    if info.get("system"):
        say(f"\n{info['system']}")
    _show(observation, info)
    total, turns = 0.0, 0
    while args.max_turns is None or turns < args.max_turns:
        action = (
            _random_action(table.env, args.id)
            if args.random
            else _typed_action(table.env, args.raw)
        )
        observation, reward, terminated, truncated, info = table.step(action)
        total, turns = total + reward, turns + 1
        _show(observation, info)
        say(f"[turn {turns}: reward {reward:g}]")
        if terminated or truncated:
            end = "the end" if terminated else "cut short"
            break
    else:
        end = "stopped here"
    solved = {True: ", solved", False: ", not solved"}.get(info.get("success"), "")  # type: ignore[arg-type]
    say(f"\n{end} after {turns} turn{'s' * (turns != 1)}: total reward {total:g}{solved}")


def _show(observation: str, info: Mapping[str, Any]) -> None:
    say(f"\n{observation}")
    if info.get("suffix"):
        say(str(info["suffix"]))


def _random_action(env: Env, id: str) -> str:
    try:
        action = env.sample_action()
    except NotImplementedError:
        raise ConfigError(
            f"{id} has no sample_action(), so nobody can play it at random; leave --random out"
        ) from None
    say(f"> {action}")
    return action


def _typed_action(env: Env, raw: bool) -> str:
    typed = input("> ")
    # a person should not have to type what a model has to
    form = None if raw else format_of(env)
    if form is None or form.parse(typed) is not None or _calls_tools(env, typed):
        return typed
    written = form.write(typed)
    say(f"(sent as {written})")
    return written


def _tools(text: str) -> list[Any]:
    pairs = parse_wrappers(text)
    names = [spec.name for spec in wrappers.all().values() if spec.kind == "tool"]
    for name, _ in pairs:
        if name not in names:
            raise UnknownNameError("tool", name, names, "`gem-rl tools` lists them all.")
    return pairs


def _calls_tools(env: Env, typed: str) -> bool:
    while isinstance(env, Wrapper):
        if hasattr(type(env), "calls_tools"):  # the wrapper that runs tools
            return bool(env.calls_tools(typed))
        env = env.env
    return False


class _Table:
    """Where a sync or async environment is played: answers are waited for, on one event loop for the whole episode."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self._waiter = Waiter()

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        return cast("tuple[str, dict[str, Any]]", self._waiter.result(self.env.reset(**kwargs)))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return cast(
            "tuple[str, float, bool, bool, dict[str, Any]]",
            self._waiter.result(self.env.step(action)),
        )

    def __enter__(self) -> _Table:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiter.result(self.env.close())
        self._waiter.close()
