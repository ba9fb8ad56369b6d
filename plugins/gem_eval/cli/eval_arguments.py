"""The options of `gem-rl eval`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["LOCAL_TOKENS", "SERVER_TOKENS", "add_arguments", "add_template_arguments"]

SERVER_TOKENS = 4096
"""Default of --max-tokens with --server: a hosted model may think before it answers."""
LOCAL_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gem-rl eval`."""
    parser.add_argument(
        "envs",
        nargs="+",
        metavar="ENV",
        help="ids, parts of ids, patterns with * and ?, or mixtures",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        required=True,
        help="random, expert, tiny, smollm2, a model folder, a hub name, or a name on --server",
    )
    model.add_argument(
        "--server",
        default="",
        metavar="URL",
        help="OpenAI-compatible server, for example http://localhost:8000/v1",
    )
    model.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the server's key"
    )
    model.add_argument(
        "--tokenizer",
        default="",
        metavar="NAME",
        help="exchange token ids with the server (vLLM); records ids and logprobs",
    )
    add_template_arguments(model)
    model.add_argument("--request", default="", metavar="JSON", help="extra fields of each request")
    model.add_argument(
        "--max-tokens-field",
        default="max_tokens",
        metavar="NAME",
        help="request field for --max-tokens; some servers want max_completion_tokens",
    )
    model.add_argument(
        "--return-reasoning",
        action="store_true",
        help="send the thinking back with function calls; some servers require it",
    )
    model.add_argument(
        "--no-bounds",
        action="store_true",
        help="do not evaluate the random and expert baselines",
    )
    episodes = parser.add_argument_group("episodes")
    episodes.add_argument(
        "--seeds", type=int, default=20, metavar="N", help="seeds per environment (default 20)"
    )
    episodes.add_argument(
        "--first-seed", type=int, default=0, metavar="S", help="the first seed (default 0)"
    )
    episodes.add_argument(
        "--samples", type=int, default=1, metavar="K", help="episodes per seed (default 1)"
    )
    episodes.add_argument(
        "--max-turns",
        default="",
        metavar="N,N",
        help="turn limit of an episode; several limits draw a scaling plot",
    )
    episodes.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    episodes.add_argument("--tools", default="", metavar="A,B(K=V)", help="tools by name")
    episodes.add_argument(
        "--options", default="", metavar="JSON", help="options of every reset, as a JSON object"
    )
    episodes.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environments, as a JSON object"
    )
    sampling = parser.add_argument_group("sampling and execution")
    sampling.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default 1)")
    sampling.add_argument("--top-p", type=float, default=1.0, help="(default 1)")
    sampling.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="maximum tokens per generation, thinking included "
        f"(default {SERVER_TOKENS} on a server, {LOCAL_TOKENS} in this process)",
    )
    sampling.add_argument(
        "--sampling-seed",
        type=int,
        metavar="S",
        help="send a seed with every request, for servers that sample reproducibly",
    )
    sampling.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="concurrent episodes (default 16)"
    )
    sampling.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SEC",
        help="longest wait for an answer of the server (default 120)",
    )
    sampling.add_argument(
        "--request-retries",
        type=int,
        default=5,
        metavar="N",
        help="retries of a failed request, with growing delays (default 5)",
    )
    sampling.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="times an episode may resume after an error (default 0)",
    )
    sampling.add_argument(
        "--step-deadline",
        type=float,
        default=600.0,
        metavar="SEC",
        help="longest reset or step of an environment (default 600)",
    )
    sampling.add_argument("--episode-deadline", type=float, metavar="SEC", help="per episode")
    output = parser.add_argument_group("output and exit code")
    output.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="output folder (default runs/eval/MODEL/ENVS)",
    )
    output.add_argument(
        "--overwrite",
        action="store_true",
        help="start over instead of resuming the record in --out",
    )
    output.add_argument(
        "--min-success",
        type=float,
        metavar="X",
        help="exit with code 1 if the success of any environment is lower",
    )
    output.add_argument(
        "--min-return",
        type=float,
        metavar="X",
        help="exit with code 1 if the mean return of any environment is lower",
    )
    output.add_argument(
        "--allow-failed",
        type=int,
        default=0,
        metavar="N",
        help="exit with code 1 if more than N episodes failed (default 0)",
    )
    output.add_argument(
        "--scaling-x",
        choices=("tokens", "turns", "episodes"),
        default="tokens",
        help="x axis of the scaling plot (default tokens)",
    )
    output.add_argument(
        "--json", action="store_true", help="print the summary instead of the table"
    )
    output.add_argument("--quiet", action="store_true", help="do not show progress")


def add_template_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the settings of the chat template that training also has."""
    parser.add_argument(
        "--template-kwargs",
        default="",
        metavar="JSON",
        help="arguments of the chat template, as in training: '{\"enable_thinking\": false}'",
    )
    parser.add_argument(
        "--history",
        choices=("append", "template"),
        default="append",
        help="keep earlier turns as sampled, or as the chat template writes them (default append)",
    )
