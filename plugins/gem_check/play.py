"""`gem-rl play`: play an environment in the terminal, or watch a random player."""

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
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.env.wrapper_stack import wrappers as wrapper_catalog
from gem_core.errors import ConfigError, UnknownNameError

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "play an environment in the terminal"
EXAMPLES = (
    "gem-rl play game:Wordle-v0-easy",
    "gem-rl play lock.py:Lock --seed 1 --options '{\"dials\": 2}'",
    "gem-rl play game:Sokoban-v0-easy --random --max-turns 5",
    "gem-rl play math:Sample-v0 --tools python",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the environment, its options and the player."""
    parser.add_argument(
        "id",
        metavar="ENV",
        help="an id, a mixture such as '2*game:A-v0 + 1*game:B-v0', or FILE.py:CLASS",
    )
    parser.add_argument("--seed", type=int, help="the seed of the episode (default: random)")
    parser.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    parser.add_argument(
        "--tools",
        default="",
        metavar="A,B(K=V)",
        help="tools by name, for example python,search(index='FOLDER')",
    )
    parser.add_argument(
        "--options", default="", metavar="JSON", help="options of the reset, as a JSON object"
    )
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment, as a JSON object"
    )
    parser.add_argument("--max-turns", type=int, metavar="N", help="stop after this many turns")
    parser.add_argument("--random", action="store_true", help="play random legal actions")
    parser.add_argument(
        "--raw", action="store_true", help="send your input unchanged, without the action format"
    )


def run(args: argparse.Namespace) -> int:
    """Play one episode."""
    if args.max_turns is not None and args.max_turns < 1:
        raise ConfigError(f"--max-turns must be >= 1, got {args.max_turns}")
    options, arguments = json_object("--options", args.options), env_arguments(args.args)
    wrappers = [*parse_wrappers(args.wrappers), *_tools(args.tools)]
    with _SyncEnv(make(args.id, wrappers=wrappers, **arguments)) as sync_env:
        try:
            _play(sync_env, args, options)
        except EOFError:
            say("\nend of input")
    return 0


def _play(sync_env: _SyncEnv, args: argparse.Namespace, options: Mapping[str, Any]) -> None:
    observation, info = sync_env.reset(seed=args.seed, options=options)
    component = f", playing {info['env_id']}" if info.get("env_id") else ""
    say(f"{args.id}, seed {sync_env.env.seed}{component}")
    if info.get("system"):
        say(f"\n{info['system']}")
    _show(observation, info)
    total, turns = 0.0, 0
    while args.max_turns is None or turns < args.max_turns:
        if args.random:
            action = _random_action(sync_env.env, args.id)
        else:
            action = _typed_action(sync_env.env, args.raw)
        observation, reward, terminated, truncated, info = sync_env.step(action)
        total, turns = total + reward, turns + 1
        _show(observation, info)
        say(f"[turn {turns}: reward {reward:g}]")
        if terminated or truncated:
            end = "terminated" if terminated else "truncated"
            break
    else:
        end = "stopped"
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
        raise ConfigError(f"{id} does not define sample_action(); omit --random") from None
    say(f"> {action}")
    return action


def _typed_action(env: Env, raw: bool) -> str:
    typed = input("> ")
    # A person may type the bare action, without the action format that a model must use.
    form = None if raw else format_of(env)
    if form is None or form.parse(typed) is not None or _calls_tools(env, typed):
        return typed
    written = form.write(typed)
    say(f"(sent as {written})")
    return written


def _tools(text: str) -> list[Any]:
    pairs = parse_wrappers(text)
    names = [spec.name for spec in wrapper_catalog.all().values() if spec.kind == "tool"]
    for name, _ in pairs:
        if name not in names:
            raise UnknownNameError("tool", name, names, "`gem-rl tools` lists them all.")
    return pairs


def _calls_tools(env: Env, typed: str) -> bool:
    while isinstance(env, Wrapper):
        if hasattr(type(env), "calls_tools"):  # the wrapper that calls tools
            return bool(env.calls_tools(typed))
        env = env.env
    return False


class _SyncEnv:
    """A synchronous view of a sync or async environment, with one event loop per episode."""

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

    def __enter__(self) -> _SyncEnv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiter.result(self.env.close())
        self._waiter.close()
