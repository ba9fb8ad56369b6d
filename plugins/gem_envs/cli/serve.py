"""`gem-rl serve`: serve an environment over HTTP to a trainer on another host."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any

from gem_http.listener import is_loopback

from gem_core.cli.arguments import env_arguments
from gem_core.cli.terminal import say
from gem_core.env.base import Env
from gem_core.env.registry import make, spec
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError
from gem_envs.remote.protocols import DIALECTS

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "serve an environment over HTTP"
_TOKEN = "GEM_SERVE_TOKEN"
EXAMPLES = (
    "gem-rl serve game:Wordle-v0-easy",
    "gem-rl serve lock.py:Lock --port 0",
    "gem-rl serve textcraft:TextCraft-v0 --dialect textcraft --host 0.0.0.0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gem-rl serve`."""
    parser.add_argument(
        "id",
        metavar="ENV",
        help="an id, a mixture such as '2*game:A-v0 + 1*game:B-v0', or FILE.py:CLASS",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1: this machine only); on others, clients must "
        f"send a token: that of the variable {_TOKEN}, or a random one",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="port to listen on; 0 picks a free port (default 8000)",
    )
    parser.add_argument(
        "--dialect",
        default="gem",
        choices=list(DIALECTS),
        help="wire protocol: gem's own or an AgentGym server's (default gem)",
    )
    parser.add_argument(
        "--args", default="", metavar="JSON", help="environment arguments as a JSON object"
    )
    parser.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help="drop the environment's own wrappers, such as its action format",
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=3600.0,
        metavar="S",
        help="close a session after S idle seconds (default 3600)",
    )
    parser.add_argument(
        "--max-sessions",
        type=int,
        default=1024,
        metavar="N",
        help="maximum number of concurrent sessions (default 1024)",
    )
    parser.add_argument(
        "--max-sessions-per-client",
        type=int,
        metavar="N",
        help="maximum number of concurrent sessions of one IP address (default: no other limit)",
    )
    parser.add_argument(
        "--max-connections",
        type=int,
        default=2048,
        metavar="N",
        help="maximum number of open connections (default 2048)",
    )
    parser.add_argument(
        "--request-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="close a connection if a client takes over S seconds to send the header or the body "
        "of a request (default 60)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, then close every session."""
    from gem_envs.remote.server import Server

    if args.bare and args.wrappers:
        raise ConfigError("--bare removes all wrappers and --wrappers adds some; pass only one")
    env_spec = spec(args.id)
    token = os.environ.get(_TOKEN, "")
    generated = not token and not is_loopback(args.host)
    with Server(
        partial(_make, args.id, args.wrappers, args.bare, env_arguments(args.args)),
        name=env_spec.id,
        turns=env_spec.turns,
        dialect=args.dialect,
        host=args.host,
        port=args.port,
        token=secrets.token_urlsafe(24) if generated else token,
        idle_seconds=args.idle,
        max_sessions=args.max_sessions,
        max_sessions_per_client=args.max_sessions_per_client,
        max_connections=args.max_connections,
        request_seconds=args.request_seconds,
    ) as server:
        say(f"{env_spec.id} at {server.url}, dialect {args.dialect}. Press Ctrl-C to stop.")
        if generated:
            say(f"Clients must send this token: http://gem:{server.token}@HOST:PORT")
        elif token:
            say(f"Clients must send the token of {_TOKEN}.")
        if not is_loopback(args.host):
            say("The connection is not encrypted; use a network that you trust, or an SSH tunnel.")
        signal.signal(signal.SIGTERM, _exit_on_signal)
        server.wait()
    return 0


def _make(id: str, wrappers: str, bare: bool, arguments: Mapping[str, Any]) -> Env:
    env = make(id, wrappers=parse_wrappers(wrappers), execution="declared", **arguments)
    return env.unwrapped if bare else env


def _exit_on_signal(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
