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
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_core.cli.arguments import env_arguments, json_object
from gem_core.cli.terminal import say, table, width
from gem_core.errors import ConfigError, MissingDependencyError, RecordError
from gem_core.types import Sampling
from gem_eval.cli.eval_arguments import LOCAL_TOKENS, SERVER_TOKENS, add_arguments
from gem_eval.cli.output import check_folder
from gem_eval.cli.progress import Progress

if TYPE_CHECKING:
    from gem_eval.evaluation import Plan, Score
    from gem_eval.models.catalog import NamedPolicy

__all__ = ["EXAMPLES", "SUMMARY", "add_arguments", "run"]

SUMMARY = "evaluate a model on environments"
EXAMPLES = (
    "gem-rl eval game:GuessTheNumber-v0-easy --model tiny",
    "gem-rl eval lock.py:Lock --model out/model --seeds 200",
    "gem-rl eval 'game:*-easy' --model random --out runs/random",
    "gem-rl eval math:Sample-v0 --model NAME --server http://localhost:8000/v1",
)
_LONGEST = 80
"""Maximum length of the environment ids in a folder name; a hash replaces the rest."""


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the results, print the table and return the exit code."""
    from gem_core.records.serialize import without_secrets
    from gem_core.rollout.engine import Interrupted
    from gem_eval.evaluation import score, table_rows

    plans = _plans(args)
    out = args.out or Path("runs/eval") / _slug(Path(args.model).name, "model") / _envs_slug(
        plans[0].envs
    )
    check_folder(out)
    named = _named(args)
    scores: list[Score] = []
    failures: dict[str, list[str]] = {}
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
                failures.setdefault(part.player, []).extend(
                    f"{e.env_id}, seed {e.seed}: {e.failure}" for e in episodes if e.failed
                )
                by_env = {env: [e for e in episodes if e.env_id == env] for env in part.envs}
                cap = None if player.kind == "player" else part.sampling.max_tokens
                scores += [
                    score(env, part.player, by_env[env], part.max_turns, cap) for env in part.envs
                ]
    except Interrupted:
        how = " without --overwrite" if args.overwrite else ""
        print(
            f"\ninterrupted; finished episodes are in {out}. Run the same command{how} to resume",
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
    own_failures = failures.pop(args.model)
    for baseline, texts in failures.items():
        if texts:
            print(f"gem-rl: baseline {baseline}: {_failed(texts)}", file=sys.stderr)
    return _exit_code(args, own, own_failures)


def _plans(args: argparse.Namespace) -> list[Plan]:
    from gem_core.env.registry import make
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.evaluation import Plan, chosen_envs
    from gem_eval.models.catalog import unplayable

    try:
        limits = sorted({int(n) for n in args.max_turns.split(",")}) if args.max_turns else [None]
    except ValueError:
        raise ConfigError(
            f"--max-turns must be integers separated by commas, such as 5,10,20; "
            f"got {args.max_turns!r}"
        ) from None
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency must be 1 or more; got {args.concurrency}")
    if args.min_success is not None and not 0 <= args.min_success <= 1:
        raise ConfigError(
            f"--min-success must be from 0 to 1, for example 0.3 for 30%; got {args.min_success:g}"
        )
    json_object("--request", args.request)
    template_kwargs = json_object("--template-kwargs", args.template_kwargs)
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
    cap = args.max_tokens
    if cap is not None and cap < 1:
        raise ConfigError(f"--max-tokens must be 1 or more; got {cap}")
    if cap is None:
        cap = SERVER_TOKENS if args.server else LOCAL_TOKENS
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, max_tokens=cap)
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
            history=args.history,
            template_kwargs=template_kwargs,
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
        return_reasoning=args.return_reasoning,
        request=json_object("--request", args.request),
        history=args.history,
        template_kwargs=json_object("--template-kwargs", args.template_kwargs),
    )


def _baseline(args: argparse.Namespace, plan: Plan, player: str) -> list[tuple[Plan, NamedPolicy]]:
    """Plan a baseline player on the environments that support it.

    The expert plays one sample per seed, because it always plays a seed the same way.
    """
    from gem_core.env.registry import make
    from gem_core.rollout.env_pool import close_unused
    from gem_eval.models.catalog import policy_named, unplayable

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

    label = plan.player
    if plan.max_turns is not None:
        label += f", {plan.max_turns} turn{'s' * (plan.max_turns != 1)}"
    progress = Progress(
        label,
        plan.size,
        quiet=args.quiet,
        troubles=troubles,
        silence=lambda: getattr(named.policy, "silence", 0.0),  # a local model has none
        timeout=args.timeout,
    )
    limits = Limits(
        max_context=named.max_context,
        retries=args.retries,
        step_deadline=args.step_deadline,
        episode_deadline=args.episode_deadline,
    )
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on a line of its own: the progress line has no line break."""
    print(f"\ngem-rl: warning: {message}", file=sys.stderr, flush=True)


def _scaling(scores: list[Score], out: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    from gem_eval.evaluation.scaling import draw_scaling, scaling_points

    points = scaling_points(scores, args.scaling_x)
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
        problems.append(f"{_failed(failures)} (--allow-failed is {args.allow_failed})")
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


def _failed(failures: Sequence[str]) -> str:
    count = len(failures)
    return f"{count} episode{'s' * (count != 1)} failed; the first failure: {failures[0]}"


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
