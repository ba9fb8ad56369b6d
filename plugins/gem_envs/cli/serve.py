"""`gem-rl serve`: an environment over HTTP, so that it can live on another host than the trainer."""

from __future__ import annotations

import argparse
import ipaddress
import signal
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any

from gem_core.cli.arguments import env_arguments
from gem_core.cli.terminal import say
from gem_core.env.base import Env
from gem_core.env.registry import make, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_envs.remote.protocols import DIALECTS

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "serve an environment over HTTP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to serve, to whom, and in which words."""
    parser.add_argument(
        "id", help="an environment id, or a mixture such as '2*game:A-v0 + 1*game:B-v0'"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default 127.0.0.1: this machine only)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="the port to listen on; 0 takes a free one (default 8000)",
    )
    parser.add_argument(
        "--dialect",
        default="gem",
        choices=list(DIALECTS),
        help="gem's, or that of a server of AgentGym's",
    )
    parser.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environment, as a JSON object"
    )
    parser.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help="without the environment's own wrappers, such as its action format",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=3600.0,
        metavar="S",
        help="close a session unused for S seconds (3600)",
    )
    parser.add_argument(
        "--max-sessions",
        type=int,
        default=1024,
        metavar="N",
        help="sessions at one time (default 1024)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM, then closes every session."""
    from gem_envs.remote.server import Server

    if args.bare and args.wrappers:
        raise ConfigError(
            "--bare leaves wrappers out and --wrappers puts some on; give one of the two"
        )
    known = spec(args.id)
    with Server(
        partial(_made, args.id, args.wrappers, args.bare, env_arguments(args.args)),
        name=known.id,
        turns=known.turns,
        dialect=args.dialect,
        host=args.host,
        port=args.port,
        idle_seconds=args.idle,
        max_sessions=args.max_sessions,
    ) as server:
        say(f"{known.id} at {server.url}, dialect {args.dialect}. Ctrl-C ends it.")
        if not _loopback(args.host):
            say("Everybody who reaches this address can use it: there is no password.")
        signal.signal(signal.SIGTERM, _terminated)
        server.wait()
    return 0


def _made(id: str, wrappers: str, bare: bool, arguments: Mapping[str, Any]) -> Env:
    env = make(id, wrappers=parse_wrappers(wrappers), execution="declared", **arguments)
    return env.unwrapped if bare else env


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _terminated(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
