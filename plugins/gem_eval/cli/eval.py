"""`gem-rl eval`: evaluate a model on environments, next to the random and expert baselines.

Exit code 0: the score meets `--min-success` and `--min-return`, and at most `--allow-failed`
episodes failed. 1: one of these does not hold. 2: a usage error. 130: interrupted by Ctrl-C; the
same command resumes.
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
"""Maximum length of the environment ids in a folder name; a hash replaces the rest."""


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
        help="random, expert, tiny, smollm2, a model folder, or a model name on --server",
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
    model.add_argument("--request", default="", metavar="JSON", help="extra fields of each request")
    model.add_argument(
        "--max-tokens-field",
        default="max_tokens",
        metavar="NAME",
        help="request field for --max-tokens; some servers want max_completion_tokens",
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
        default=512,
        metavar="N",
        help="maximum tokens per generation (default 512)",
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
        "--timeout", type=float, default=600.0, metavar="SEC", help="per request (default 600)"
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
        "--json", action="store_true", help="print the summary instead of the table"
    )
    output.add_argument("--quiet", action="store_true", help="do not show progress")


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the results, print the table and return the exit code."""
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
            for part, player in [
                *_baseline(args, plan, "random"),
                (plan, named),
                *_baseline(args, plan, "expert"),
            ]:
                name = "episodes" if part is plan else part.player
                episodes = _play(args, part, player, folder / f"{name}.jsonl")
                if part is plan:
                    failures += [
                        f"{e.env_id}, seed {e.seed}: {e.failure}" for e in episodes if e.failed
                    ]
                by_env = {env: [e for e in episodes if e.env_id == env] for env in part.envs}
                scores += [
                    score(env, part.player, by_env[env], part.max_turns) for env in part.envs
                ]
    except Interrupted:
        print(
            f"\ninterrupted; finished episodes are in {out}. Run the same command to resume",
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
    names = ", ".join(sorted(path.name for path in out.iterdir()))
    print(f"\nwritten to {out}: {names}", file=sys.stderr)
    return _exit_code(args, own, failures)


def _plans(args: argparse.Namespace) -> list[Plan]:
    from gem_core.env.registry import make
    from gem_core.policies.players import unplayable
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.evaluation import Plan, chosen_envs

    try:
        limits = sorted({int(n) for n in args.max_turns.split(",")}) if args.max_turns else [None]
    except ValueError:
        raise ConfigError(
            f"--max-turns must be integers separated by commas, such as 5,10,20; "
            f"got {args.max_turns!r}"
        ) from None
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency must be 1 or more; got {args.concurrency}")
    json_object("--request", args.request)
    envs = chosen_envs(args.envs)
    wrappers = ",".join(filter(None, (args.wrappers, args.tools)))
    options, kwargs = json_object("--options", args.options), env_arguments(args.args)
    if args.samples > 1 and args.temperature == 0 and args.model not in ("random", "expert"):
        print(
            "note: at temperature 0 all samples of a seed are the same episode",
            file=sys.stderr,
        )
    for env_id in envs:
        # fail before the first episode if an environment cannot be made
        env: Any = make(env_id, wrappers=wrappers, **kwargs)
        reason = unplayable(args.model, env)
        close_unused(env)
        if reason:
            raise ConfigError(
                f"{env_id} does not support --model {args.model}: {reason}; "
                "remove it from the list, or choose another --model"
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


def _baseline(args: argparse.Namespace, plan: Plan, player: str) -> list[tuple[Plan, NamedPolicy]]:
    """Plan a baseline player on the environments that support it.

    The expert plays one sample per seed, because it always plays a seed the same way.
    """
    from gem_core.env.registry import make
    from gem_core.policies.players import unplayable
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.models.catalog import policy_named

    if args.no_bounds or player == args.model:
        return []
    envs = []
    for env_id in plan.envs:
        env: Any = make(env_id, wrappers=plan.wrappers, **plan.env_kwargs)
        if not unplayable(player, env):
            envs.append(env_id)
        close_unused(env)
    if not envs:
        return []
    baseline = replace(
        plan,
        player=player,
        envs=tuple(envs),
        samples=plan.samples if player == "random" else 1,
        kind="player",
        request="",
        sampling_seed=None,
    )
    return [(baseline, policy_named(player))]


def _play(args: argparse.Namespace, plan: Plan, named: NamedPolicy, path: Path) -> list[Any]:
    from gem_core.rollout.limits import Limits
    from gem_eval.evaluation import evaluate

    def troubles() -> Mapping[str, int]:
        counts: Mapping[str, int] = getattr(named.policy, "troubles", {})  # a player has none
        return counts

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
            counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(troubles().items()))
            print(f"requests retried after server failures: {counts}", file=sys.stderr)


def _scaling(scores: list[Score], out: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    from gem_eval.evaluation.scaling import draw_scaling, scaling_points

    points = scaling_points(scores)
    for name in ("scaling.png", "scaling.svg") if points else ():
        try:
            draw_scaling(points, out / name, args.model)
        except MissingDependencyError as error:
            print(f"{out / name} was not drawn: {error}", file=sys.stderr)
            break
    return [point.as_json() for point in points]


def _exit_code(args: argparse.Namespace, scores: list[Score], failures: list[str]) -> int:
    problems = []
    if len(failures) > args.allow_failed:
        problems.append(
            f"{len(failures)} episodes failed, --allow-failed is {args.allow_failed}; "
            f"the first failure: {failures[0]}"
        )
    for s in scores:
        for minimum, name, estimate in (
            (args.min_success, "success", s.success),
            (args.min_return, "mean return", s.mean_return),
        ):
            if minimum is not None and (estimate is None or estimate.value < minimum):
                value = "unknown" if estimate is None else f"{estimate.value:.3f}"
                problems.append(f"{s.env_id}: {name} is {value}, expected at least {minimum}")
    for problem in problems:
        print(f"gem-rl: {problem}", file=sys.stderr)
    return int(bool(problems))


def _close(named: NamedPolicy) -> None:
    close = getattr(named.policy, "close", None)
    if close is not None:
        close()


def _write(path: Path, text: str) -> None:
    """Write a file atomically, so a reader never sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.new")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error}") from error


def _slug(text: str, otherwise: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or otherwise


def _envs_slug(envs: Sequence[str]) -> str:
    """Return a folder name that is unique to this list of environments."""
    name = "+".join(_slug(env, "env") for env in envs)
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(" ".join(envs).encode()).hexdigest()[:8]
    return f"{name[:_LONGEST].rstrip('-.+')}-{digest}"
