"""`gem-rl eval`: plays environments with a model and says how well it does, beside a random player and an expert.

Exit code: 0 where every episode has an outcome and the score is as asked for; 1 where it is not, or more episodes than
`--allow-failed` have none; 2 for a mistake; 130 after Ctrl-C, and the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_core.cli.arguments import env_arguments, json_object
from gem_core.cli.terminal import say, table, width
from gem_core.errors import ConfigError, MissingDependencyError, RecordError
from gem_core.types import Sampling
from gem_eval.cli.progress import Progress

if TYPE_CHECKING:
    from gem_eval.evaluation import Plan, Score
    from gem_eval.models.catalog import NamedPolicy

__all__ = ["SUMMARY", "add_arguments", "run"]

SUMMARY = "evaluate a model on environments"
_LONGEST = 80
"""Characters of ids in the name of a folder; of a longer list, the rest is a hash."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is played, by whom, how, and what for."""
    add = parser.add_argument
    add(
        "envs",
        nargs="+",
        metavar="ENV",
        help="ids, parts of ids, patterns with * and ?, or mixtures",
    )
    who = parser.add_argument_group("who plays")
    who.add_argument(
        "--model",
        required=True,
        help="random, expert, tiny, smollm2, a model folder, or a server's name for it",
    )
    who.add_argument(
        "--server",
        default="",
        metavar="URL",
        help="an OpenAI-compatible server, as in http://localhost:8000/v1",
    )
    who.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable that holds the server's key"
    )
    who.add_argument(
        "--tokenizer",
        default="",
        metavar="NAME",
        help="send token ids to the server (vLLM), keep ids and logprobs",
    )
    who.add_argument("--request", default="", metavar="JSON", help="further fields of each request")
    who.add_argument(
        "--max-tokens-field",
        default="max_tokens",
        metavar="NAME",
        help="some want max_completion_tokens",
    )
    who.add_argument(
        "--no-bounds",
        action="store_true",
        help="leave the random player and the expert out of the table",
    )
    what = parser.add_argument_group("what is played")
    what.add_argument(
        "--seeds", type=int, default=20, metavar="N", help="starts of each environment (default 20)"
    )
    what.add_argument(
        "--first-seed", type=int, default=0, metavar="S", help="the first of them (default 0)"
    )
    what.add_argument(
        "--samples", type=int, default=1, metavar="K", help="episodes from each start (default 1)"
    )
    what.add_argument(
        "--max-turns",
        default="",
        metavar="N,N",
        help="turns an episode may have; several give a scaling plot",
    )
    what.add_argument(
        "--wrappers", default="", metavar="A,B(K=V)", help="wrappers by name, innermost first"
    )
    what.add_argument("--tools", default="", metavar="A,B(K=V)", help="tools by name")
    what.add_argument(
        "--options", default="", metavar="JSON", help="options of every reset, as a JSON object"
    )
    what.add_argument(
        "--args", default="", metavar="JSON", help="arguments of the environments, as a JSON object"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default 1)")
    how.add_argument("--top-p", type=float, default=1.0, help="(default 1)")
    how.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="tokens of one answer (default 512)",
    )
    how.add_argument(
        "--sampling-seed",
        type=int,
        metavar="S",
        help="seed every request, so that a server can repeat itself",
    )
    how.add_argument(
        "--concurrency", type=int, default=16, metavar="N", help="episodes at a time (default 16)"
    )
    how.add_argument(
        "--timeout", type=float, default=600.0, metavar="SEC", help="for one request (default 600)"
    )
    how.add_argument(
        "--request-retries",
        type=int,
        default=5,
        metavar="N",
        help="tries again, waiting longer (default 5)",
    )
    how.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="times an episode goes on after an error (default 0)",
    )
    how.add_argument("--episode-deadline", type=float, metavar="SEC", help="for a whole episode")
    after = parser.add_argument_group("what for")
    after.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where it is written (default runs/eval/MODEL/ENVS)",
    )
    after.add_argument(
        "--overwrite", action="store_true", help="begin anew instead of going on with what is there"
    )
    after.add_argument(
        "--min-success",
        type=float,
        metavar="X",
        help="exit code 1 where an environment's success is below",
    )
    after.add_argument(
        "--min-return",
        type=float,
        metavar="X",
        help="exit code 1 where an environment's mean return is below",
    )
    after.add_argument(
        "--allow-failed",
        type=int,
        default=0,
        metavar="N",
        help="episodes without outcome to put up with",
    )
    after.add_argument("--json", action="store_true", help="print the summary instead of the table")
    after.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Plays, writes, prints, judges."""
    from gem_core.records.serialize import without_secrets
    from gem_core.rollout.engine import Interrupted
    from gem_eval.evaluation import score, table_rows

    plans = _plans(args)
    named = _named(args)
    out = args.out or Path("runs/eval") / _slug(Path(args.model).name, "model") / _envs_slug(
        plans[0].envs
    )
    scores: list[Score] = []
    failures: list[str] = []
    try:
        for plan in plans:
            plan = replace(plan, kind=named.kind)
            folder = out if len(plans) == 1 else out / f"turns-{plan.max_turns}"
            for one, player in [
                *_bound(args, plan, "random"),
                (plan, named),
                *_bound(args, plan, "expert"),
            ]:
                name = "episodes" if one is plan else one.player
                episodes = _play(args, one, player, folder / f"{name}.jsonl")
                failures += [
                    f"{e.env_id}, seed {e.seed}: {e.failure}"
                    for e in episodes
                    if e.failed and one is plan
                ]
                by_env = {env: [e for e in episodes if e.env_id == env] for env in one.envs}
                scores += [score(env, one.player, by_env[env], one.max_turns) for env in one.envs]
    except Interrupted:
        print(
            f"\ninterrupted; what was finished is in {out}, and the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    finally:
        _close(named)
    order = {env: i for i, env in enumerate(plans[0].envs)}
    scores.sort(key=lambda s: order[s.env_id])
    summary = {
        "player": args.model,
        "plans": [plan.as_json() for plan in plans],
        "scores": [s.as_json() for s in scores],
    }
    headers, rows = table_rows(scores)
    _write(out / "table.txt", table(headers, rows) + "\n")
    own = [s for s in scores if s.player == args.model]
    if len(plans) > 1:
        summary["scaling"] = _scaling(own, out, args)
    text = json.dumps(without_secrets(summary), indent=2, default=repr) + "\n"
    _write(out / "summary.json", text)
    say(text.rstrip() if args.json else table(headers, rows, width()))
    print(
        f"\nwritten to {out}: {', '.join(sorted(p.name for p in out.iterdir()))}", file=sys.stderr
    )
    return _judged(args, own, failures)


def _plans(args: argparse.Namespace) -> list[Plan]:
    from gem_core.env.registry import make
    from gem_core.policies.players import unplayable
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.evaluation import Plan, chosen_envs

    try:
        limits = sorted({int(n) for n in args.max_turns.split(",")}) if args.max_turns else [None]
    except ValueError:
        raise ConfigError(
            f"--max-turns takes whole numbers with commas between them, as in 5,10,20; given: {args.max_turns!r}"
        ) from None
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency must be 1 or more; given: {args.concurrency}")
    json_object("--request", args.request)
    envs = chosen_envs(args.envs)
    wrappers = ",".join(filter(None, (args.wrappers, args.tools)))
    options, kwargs = json_object("--options", args.options), env_arguments(args.args)
    if args.samples > 1 and args.temperature == 0 and args.model not in ("random", "expert"):
        print(
            "note: at temperature 0 the samples of a start are the same answer over again",
            file=sys.stderr,
        )
    for env in envs:
        made: Any = make(
            env, wrappers=wrappers, **kwargs
        )  # what cannot be made is refused before anything is played
        why = unplayable(args.model, made)
        close_unused(made)
        if why:
            how = "at random" if args.model == "random" else "as an expert"
            raise ConfigError(
                f"{env}: {why}, so nobody can play it {how}; leave it out, or choose another --model"
            )
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens)
    return [
        Plan(
            args.model,
            envs,
            args.seeds,
            args.samples,
            args.first_seed,
            wrappers,
            options,
            kwargs,
            limit,
            sampling,
            args.sampling_seed,
            request=args.request,
        )
        for limit in limits
    ]


def _named(args: argparse.Namespace) -> NamedPolicy:
    from gem_eval.models.catalog import policy_named

    return policy_named(
        args.model,
        server=args.server,
        api_key_env=args.api_key_env,
        tokenizer=args.tokenizer,
        timeout=args.timeout,
        retries=args.request_retries,
        max_connections=args.concurrency,
        max_tokens_field=args.max_tokens_field,
        request=json_object("--request", args.request),
    )


def _bound(args: argparse.Namespace, plan: Plan, player: str) -> list[tuple[Plan, NamedPolicy]]:
    """The floor or the ceiling of a plan, on the environments that have one. An expert plays a start the same way every time."""
    from gem_core.env.registry import make
    from gem_core.policies.players import unplayable
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.models.catalog import policy_named

    if args.no_bounds or player == args.model:
        return []
    envs = []
    for env in plan.envs:
        made: Any = make(env, wrappers=plan.wrappers, **plan.env_kwargs)
        if not unplayable(player, made):
            envs.append(env)
        close_unused(made)
    if not envs:
        return []
    samples = plan.samples if player == "random" else 1
    bound = replace(
        plan,
        player=player,
        envs=tuple(envs),
        samples=samples,
        kind="player",
        request="",
        sampling_seed=None,
    )
    return [(bound, policy_named(player))]


def _play(args: argparse.Namespace, plan: Plan, named: NamedPolicy, path: Path) -> list[Any]:
    from gem_core.rollout.limits import Limits
    from gem_eval.evaluation import evaluate

    def troubles() -> Mapping[str, int]:
        found: Mapping[str, int] = getattr(named.policy, "troubles", {})  # a player has none
        return found

    label = plan.player if plan.max_turns is None else f"{plan.player}, {plan.max_turns} turns"
    progress = Progress(label, plan.size, quiet=args.quiet, troubles=troubles)
    limits = Limits(
        max_context=named.max_context, retries=args.retries, episode_deadline=args.episode_deadline
    )
    try:
        return evaluate(
            plan,
            named.policy,
            path,
            renderer=named.renderer,
            limits=limits,
            concurrency=args.concurrency,
            overwrite=args.overwrite,
            on_begin=progress.begin,
            on_episode=progress.episode,
        )
    finally:
        progress.end()
        if troubles():
            told = ", ".join(f"{count} x {kind}" for kind, count in sorted(troubles().items()))
            print(f"the server failed for a moment and was asked again: {told}", file=sys.stderr)


def _scaling(scores: list[Score], out: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    from gem_eval.evaluation.scaling import draw_scaling, scaling_points

    points = scaling_points(scores)
    for name in ("scaling.png", "scaling.svg") if points else ():
        try:
            draw_scaling(points, out / name, args.model)
        except MissingDependencyError as error:
            print(f"no {out / name}: {error}", file=sys.stderr)
            break
    return [point.as_json() for point in points]


def _judged(args: argparse.Namespace, scores: list[Score], failures: list[str]) -> int:
    wrong = []
    if len(failures) > args.allow_failed:
        wrong.append(
            f"{len(failures)} episodes have no outcome, --allow-failed {args.allow_failed}; {failures[0]}"
        )
    for s in scores:
        for least, name, reached in (
            (args.min_success, "success", s.success),
            (args.min_return, "mean return", s.mean_return),
        ):
            if least is not None and (reached is None or reached.value < least):
                shown = "not known" if reached is None else f"{reached.value:.3f}"
                wrong.append(f"{s.env_id}: {name} is {shown}, below {least}")
    for line in wrong:
        print(f"gem-rl: {line}", file=sys.stderr)
    return int(bool(wrong))


def _close(named: NamedPolicy) -> None:
    close = getattr(named.policy, "close", None)
    if close is not None:
        close()


def _write(path: Path, text: str) -> None:
    """At once, so that a reader never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error


def _slug(text: str, otherwise: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or otherwise


def _envs_slug(envs: Sequence[str]) -> str:
    """A folder's name for these environments: another list has another one, so that two evaluations of a model do not meet."""
    name = "+".join(_slug(env, "env") for env in envs)
    if len(name) <= _LONGEST:
        return name
    return (
        f"{name[:_LONGEST].rstrip('-.+')}-{hashlib.sha256(' '.join(envs).encode()).hexdigest()[:8]}"
    )
