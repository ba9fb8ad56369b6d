"""`gem-rl suite`: play a frozen evaluation suite and write a report by family.

The exit code is 1 if episodes failed, and 130 after Ctrl-C; the same command resumes. `--check`
exits with 1 if an environment differs from the frozen one.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_core.cli.arguments import json_object
from gem_core.cli.terminal import say, table, width
from gem_core.errors import ConfigError
from gem_eval.cli.eval_arguments import add_template_arguments
from gem_eval.cli.output import check_folder
from gem_eval.cli.progress import Progress

if TYPE_CHECKING:
    from gem_core.types import Episode
    from gem_eval.evaluation import Plan
    from gem_eval.models.catalog import NamedPolicy
    from gem_eval.suite.suite import Suite

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "play a frozen evaluation suite and report by family"
EXAMPLES = (
    "gem-rl suite gem-eval-v1 --model random,expert",
    "gem-rl suite gem-eval-v1 --model smollm2 --families games,tools --seeds 2",
    "gem-rl suite gem-eval-v1 --model NAME --server http://localhost:8000/v1",
    "gem-rl suite gem-eval-v1 --check",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("suite", help="the name of a suite: gem-eval-v1")
    parser.add_argument(
        "--model",
        default="random,expert",
        metavar="A,B",
        help="players, separated by commas: random, expert, tiny, smollm2, a folder or a name on "
        "the server (default random,expert)",
    )
    parser.add_argument("--server", default="", metavar="URL", help="an OpenAI-compatible server")
    parser.add_argument("--api-key-env", metavar="NAME", help="the variable with the API key")
    parser.add_argument(
        "--tokenizer", default="", metavar="NAME", help="exchange token ids with the server (vLLM)"
    )
    add_template_arguments(parser)
    parser.add_argument(
        "--max-context", type=int, metavar="N", help="end episodes at this context length"
    )
    parser.add_argument(
        "--families",
        default="",
        metavar="A,B",
        help="play only these families or ids (default all)",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="play only the first N seeds (default all)"
    )
    parser.add_argument("--max-turns", type=int, metavar="N", help="end episodes after N turns")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N", help="per completion")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default 1)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="episodes at once")
    parser.add_argument(
        "--skip-missing",
        action="store_true",
        help="skip environments whose packages or programs are missing, and list them",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="play no model; compare the environments installed here with the frozen ones",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="(default runs/suite/NAME)")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results")
    parser.add_argument("--quiet", action="store_true", help="do not show progress")


def run(args: argparse.Namespace) -> int:
    """Play the suite with every player, write the report, and print its table."""
    from gem_core.rollout.engine import Interrupted
    from gem_eval.models.catalog import check_tokenizer
    from gem_eval.suite.report import family_scores, id_results, markdown_report
    from gem_eval.suite.report import table as report_table
    from gem_eval.suite.suite import suite_named

    suite = _chosen(suite_named(args.suite), args)
    suite, skipped = _playable(suite, args)
    if args.check:
        return _check(suite)
    out = args.out or Path("runs/suite") / suite.name
    check_folder(out)
    players = [name.strip() for name in args.model.split(",") if name.strip()]
    if not players:
        raise ConfigError("--model must name at least one player, such as random,expert")
    template_kwargs = json_object("--template-kwargs", args.template_kwargs)
    if template_kwargs or args.history != "append":  # fail before the first player
        check_tokenizer(players, args.server, args.tokenizer)
    results, failures = [], []
    try:
        for player in players:
            episodes = _play(suite, player, args, out)
            failures += [f"{e.env_id}, seed {e.seed}: {e.failure}" for e in episodes if e.failed]
            results += id_results(player, suite, episodes)
    except Interrupted:
        how = " without --overwrite" if args.overwrite else ""
        print(f"\ninterrupted; run the same command{how} to resume ({out})", file=sys.stderr)
        return 130
    scores = family_scores(suite, results)
    summary = {
        "suite": suite.name,
        "date": date.today().isoformat(),
        "seeds": suite.seeds,
        "first_seed": suite.first_seed,
        "max_tokens": args.max_tokens,
        "max_turns": args.max_turns,
        "temperature": args.temperature,
        "history": args.history,
        "template_kwargs": template_kwargs,
        "skipped": skipped,
        "results": [result.as_json() for result in results],
        "scores": [score.as_json() for score in scores],
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    (out / "report.md").write_text(markdown_report(suite, results, skipped), encoding="utf-8")
    say(table(*report_table(scores), width()))
    print(f"\nwritten to {out}: report.md, summary.json and the episodes", file=sys.stderr)
    if failures:
        episodes_failed = f"{len(failures)} episode{'s' * (len(failures) != 1)} failed"
        print(f"gem-rl: {episodes_failed}; the first: {failures[0]}", file=sys.stderr)
    return int(bool(failures))


def _chosen(suite: Suite, args: argparse.Namespace) -> Suite:
    families = [name.strip() for name in args.families.split(",") if name.strip()]
    if families:
        suite = suite.only(families)
    if args.seeds is not None:
        if not 1 <= args.seeds <= suite.seeds:
            raise ConfigError(f"--seeds must be 1 to {suite.seeds}; got {args.seeds}")
        suite = replace(suite, seeds=args.seeds)
    return suite


def _playable(suite: Suite, args: argparse.Namespace) -> tuple[Suite, dict[str, str]]:
    from gem_eval.suite.suite import missing_ids

    missing = missing_ids(suite)
    if missing and not args.skip_missing:
        id, reason = next(iter(missing.items()))
        raise ConfigError(
            f"{len(missing)} environments of {suite.name} cannot be played here, for example "
            f"{id}: {reason}. Install what is missing, or pass --skip-missing"
        )
    playable = suite.without(missing)
    if not playable.ids:
        raise ConfigError(f"no environment of {suite.name} can be played here")
    return playable, missing


def _check(suite: Suite) -> int:
    """Replay the experts and print the environments whose transcripts differ."""
    from gem_eval.suite.transcripts import frozen_hashes, replayed_hashes

    frozen = frozen_hashes(suite.name)
    different = 0
    for id in suite.ids:
        pairs = zip(frozen[id], replayed_hashes(id, suite), strict=False)
        wrong = [suite.first_seed + n for n, (old, new) in enumerate(pairs) if old != new]
        different += bool(wrong)
        seeds = f"differs at the seeds {', '.join(map(str, wrong))}" if wrong else "as frozen"
        print(f"{id}: {seeds}", flush=True)
    print(f"{different} of {len(suite.ids)} environments differ from {suite.name}")
    return int(bool(different))


def _play(suite: Suite, player: str, args: argparse.Namespace, out: Path) -> list[Episode]:
    from gem_core.policies.players import PLAYERS
    from gem_core.rollout.limits import Limits
    from gem_eval.evaluation import evaluate
    from gem_eval.models.catalog import policy_named
    from gem_eval.suite.suite import unplayable_ids

    suite = suite.without(unplayable_ids(suite, player))
    baseline = player in PLAYERS
    server = "" if baseline else args.server
    named = policy_named(
        player,
        server=server,
        api_key_env=args.api_key_env if server else None,
        tokenizer=args.tokenizer if server else "",
        max_connections=args.concurrency,
        history="append" if baseline else args.history,
        template_kwargs=json_object("--template-kwargs", "" if baseline else args.template_kwargs),
    )
    plan = _plan(suite, player, named, args)
    progress = Progress(player, plan.size, quiet=args.quiet)
    try:
        return evaluate(
            plan,
            named.policy,
            out / f"{_file_name(player)}.jsonl",
            renderer=named.renderer,
            limits=Limits(max_context=named.max_context),
            concurrency=args.concurrency,
            overwrite=args.overwrite,
            on_begin=progress.begin,
            on_episode=progress.episode,
        )
    finally:
        progress.end()
        close: Any = getattr(named.policy, "close", None)
        if close is not None:
            close()


def _plan(suite: Suite, player: str, named: NamedPolicy, args: argparse.Namespace) -> Plan:
    from gem_core.types import Sampling
    from gem_eval.evaluation import Plan

    return Plan(
        player,
        suite.ids,
        suite.seeds,
        first_seed=suite.first_seed,
        max_turns=args.max_turns,
        sampling=Sampling(temperature=args.temperature, max_tokens=args.max_tokens),
        kind=named.kind,
        max_context=args.max_context,
    )


def _file_name(player: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(player).name) or "model"
