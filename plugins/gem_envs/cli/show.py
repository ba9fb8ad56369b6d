"""`gem-rl show ENV`: describe one environment: rules, reward, limits, and a played episode."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from typing import Any

from gem_core.cli.arguments import env_arguments
from gem_core.cli.envs import tags_of
from gem_core.cli.terminal import say, styled
from gem_core.env.base import Env
from gem_core.env.registry import EnvSpec, make, spec
from gem_core.errors import GemError, MissingDependencyError
from gem_core.policies.players import ExpertPlayer, RandomPlayer, expert_of
from gem_core.rollout.engine import run_episode
from gem_envs.cli.transcript import transcript_of

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "describe one environment, and show a short episode of it"
EXAMPLES = (
    "gem-rl show game:Wordle-v0-easy",
    "gem-rl show rg:chain_sum --seed 3",
    "gem-rl show lock.py:Lock",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the environment and the episode."""
    parser.add_argument("id", metavar="ENV", help="an environment id, or FILE.py:CLASS")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the episode (default 1)")
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment, as a JSON object"
    )
    parser.add_argument("--no-episode", action="store_true", help="play no episode")


def run(args: argparse.Namespace) -> int:
    """Print the facts, the rules and an episode; say what is missing if it cannot be played."""
    env_spec, arguments = spec(args.id), env_arguments(args.args)
    say(f"{styled(env_spec.id, 'bold')}\n{env_spec.summary}\n")
    for name, value in _facts(env_spec, arguments).items():
        say(f"  {styled(f'{name:10}', 'cyan')} {value}")
    try:
        build = env_spec.load()
        say(f"\n{styled('rules', 'bold')}\n  {_rules(build)}")
        if args.no_episode:
            return 0
        if not env_spec.offline:
            say("\nno episode: it needs a network or a server; `gem-rl play` plays it")
            return 0
        env = make(args.id, **arguments)
    except MissingDependencyError as error:
        say(f"\nno episode: {error}")
        return 0
    return _episode(env, args.seed)


def _episode(env: Env, seed: int) -> int:
    player: Any = RandomPlayer()
    name = "random actions"
    if expert_of(env) is not None:
        player, name = ExpertPlayer(), "its expert"
    elif not env.unwrapped.plays_at_random:
        say("\nno episode: it has neither an expert nor random actions; `gem-rl play` plays it")
        return 0
    try:
        episode = run_episode(env, player, seed=seed)
    except GemError as error:
        say(f"\nno episode: {error}")
        return 1
    if episode.failed:
        say(f"\nno episode: {episode.failure}")
        return 1
    say(f"\n{styled(f'episode with seed {seed}, played by {name}', 'bold')}\n")
    say(transcript_of(episode))
    return 0


def _facts(env_spec: EnvSpec, arguments: Mapping[str, Any]) -> dict[str, str]:
    entry = env_spec.entry_point
    made_with = {**env_spec.kwargs, **arguments}
    facts = {
        "turns": "not declared" if env_spec.turns is None else str(env_spec.turns),
        "reward": env_spec.reward,
        "data": env_spec.data,
        "tags": ", ".join(tags_of(env_spec)),
        "needs": f"pip install '.[{env_spec.extra}]'" if env_spec.extra else "",
        "wrappers": ", ".join(_wrapper(each) for each in env_spec.wrappers),
        "arguments": ", ".join(f"{name}={value!r}" for name, value in made_with.items()),
        "class": entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}",
    }
    if not env_spec.deterministic:
        facts["seeds"] = "an episode is not determined by its seed"
    return {name: value for name, value in facts.items() if value}


def _wrapper(item: Any) -> str:
    if not isinstance(item, tuple):
        return str(item) if isinstance(item, str) else getattr(item, "__name__", repr(item))
    name, kwargs = item
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in kwargs.items())})"


def _rules(build: Any) -> str:
    module = inspect.getmodule(build)
    first = (inspect.getdoc(module) or "").partition("\n")[0] if module is not None else ""
    texts = [first.partition(": ")[2] or first, inspect.getdoc(build) or ""]
    options = sorted(getattr(build, "option_names", ()))
    if options:
        texts.append(f"Options of reset: {', '.join(options)}.")
    text = "\n\n".join(text[0].upper() + text[1:] for text in texts if text)
    return text.replace("\n", "\n  ")
