"""Kit: the checks every adapter passes or refuses, and the table they are printed as.

The tolerances: token identity and masks exactly, reward mass and advantages within 1e-6 (and 2e-7·S/std where
a framework's own channel is float32), the gradient within 1e-4 of the reference up to the factor the harness states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gem_core.adapter_kit.conformance.golden import CASES, GRADIENT_CASES, ONE_RANK_FAILED, Case
from gem_core.adapter_kit.conformance.harness import CARRIED, Harness, TrainedSequence
from gem_core.errors import GemError
from gem_core.training.advantage import advantages
from gem_core.training.sequences import TokenSequence, discounted_returns, token_sequences
from gem_core.types import Episode

__all__ = ["Result", "check_gradient", "check_ranks", "check_sequences", "report", "run"]


@dataclass(frozen=True)
class Result:
    """What came of one check of one case."""

    case: str
    outcome: str
    """`ok`, `refused`, or `FAILED`."""
    why: str = ""


class _Failed(AssertionError):
    pass


def run(
    harness: Harness, *, ranks: bool = True, progress: Callable[[Result], None] | None = None
) -> list[Result]:
    """All golden cases, two ranks against one, and the gradients."""
    work: list[tuple[str, Case, Callable[[], None]]] = [
        (case.name, case, _train_check(harness, case)) for case in CASES
    ]
    if ranks:
        work.append(
            (
                "two ranks against one",
                _case("ragged turns"),
                lambda: check_ranks(harness, _case("ragged turns")),
            )
        )
        if harness.adapter.capabilities.groups:
            work.append(
                (
                    "a group over two ranks",
                    _case("groups, grpo"),
                    lambda: check_ranks(harness, _case("groups, grpo")),
                )
            )
        if harness.adapter.capabilities.failed_episodes:
            work.append(
                (
                    "a rank with nothing but failed episodes",
                    ONE_RANK_FAILED,
                    lambda: check_ranks(harness, ONE_RANK_FAILED),
                )
            )
    work += [
        (f"{case.name} against the reference", case, partial(check_gradient, harness, case))
        for case in GRADIENT_CASES
    ]
    results = []
    for name, case, check in work:
        results.append(_outcome(harness, name, case, check))
        if progress is not None:
            progress(results[-1])
    return results


def report(harness: Harness, results: Sequence[Result]) -> str:
    """The table, in Markdown."""
    head = f"{harness.adapter.name} {harness.version}"
    lines = [f"| check | {head} |", "|---|---|"]
    lines += [f"| {r.case} | {r.outcome}{': ' + r.why if r.why else ''} |" for r in results]
    return "\n".join(lines)


def check_sequences(harness: Harness, case: Case, rows: Sequence[TrainedSequence]) -> None:
    """Token identity, masks, logprobs, reward mass and turn credit of a whole batch."""
    _check_part(harness, case, rows, case.episodes)
    _check_sum(case, rows, _carries(harness))


def check_ranks(harness: Harness, case: Case) -> None:
    """Split over two processes, every token gets what it got in one."""
    parts = [
        case.episodes[::2],
        case.episodes[1::2],
    ]  # so that the members of a group are on different ranks
    ranks = harness.ranks(case, parts)
    for rows, part in zip(ranks, parts):
        _check_part(harness, case, rows, part)
    _check_sum(case, [row for rows in ranks for row in rows], _carries(harness))


def check_gradient(harness: Harness, case: Case = GRADIENT_CASES[0]) -> None:
    """The framework's gradient against the committed one."""
    from gem_core.adapter_kit.conformance.reference import distance, load_reference

    apart, norm = distance(
        harness.gradient(case), load_reference(case), harness.gradient_factor(case)
    )
    _must(
        apart <= 1e-4 * norm + 1e-7,
        f"the gradient is {apart:.3g} away from the reference, whose norm is {norm:.3g}",
    )


def _check_part(
    harness: Harness, case: Case, rows: Sequence[TrainedSequence], part: Sequence[Episode]
) -> None:
    """The rows that some of the case's episodes became, one by one."""
    carries = _carries(harness)
    played = _expected(case, part, harness.sequence_per_turn)
    expected = [want for want in played if any(want.mask)]
    untrained = {tuple(want.ids): want for want in played if not any(want.mask)}
    for row in rows:
        _must(
            len(row.ids) == len(row.mask) == len(row.advantages),
            f"a row of {len(row.ids)} ids has {len(row.mask)} mask entries",
        )
        idle = [a for a, m in zip(row.advantages, row.mask) if not m]
        _must(all(a == 0.0 for a in idle), "an advantage stands on a token that is not trained")
        if not any(row.mask):
            own = untrained.get(tuple(row.ids))
            if own is not None:
                _check_logprobs("a row that trains nothing", row, own)
            elif not harness.padding_has_logprobs:
                _must(
                    not any(row.logprobs or ()),
                    "a placeholder, of which nobody sampled anything, has logprobs other than 0.0",
                )
    trained = [row for row in rows if any(row.mask)]
    _must(
        len(trained) == len(expected),
        f"{len(trained)} rows are trained; {len(expected)} were played",
    )
    for number, (row, want) in enumerate(zip(trained, expected)):
        _check_row(f"row {number}", case, row, want, carries)
    if "total" in carries:
        unknown, failed = sum(_unknown(row.total) for row in rows), sum(e.failed for e in part)
        _must(unknown <= failed, f"{unknown} rows have no total, and {failed} episodes are failed")


def _check_row(
    where: str, case: Case, row: TrainedSequence, want: TrainedSequence, carries: frozenset[str]
) -> None:
    _must(
        list(row.ids) == list(want.ids),
        f"{where}: the ids are not those that were sampled: {list(row.ids)} against {list(want.ids)}",
    )
    _must(
        list(row.mask) == list(want.mask),
        f"{where}: the mask is {list(row.mask)}, not {list(want.mask)}",
    )
    for name in sorted(carries):
        _must(
            getattr(row, name) is not None,
            f"{where} has no `{name}`, which the harness says it carries",
        )
    _check_logprobs(where, row, want)
    allowed = _tolerance(case)
    wrong = [
        (a, b) for a, b in zip(row.advantages, want.advantages) if not abs(a - b) <= allowed
    ]  # not >, for NaN
    _must(
        not wrong,
        f"{where}: {len(wrong)} advantages are off by more than {allowed:.3g}, the first is {wrong[:1]}",
    )
    if row.rewards is not None:
        _must(
            len(row.rewards) == len(row.ids),
            f"{where}: {len(row.rewards)} rewards stand against {len(row.ids)} ids",
        )
        _must(all(map(math.isfinite, row.rewards)), f"{where}: a reward is not a number")
        mass = sum(r * m for r, m in zip(row.rewards, row.mask))
        _must(
            _is_paid(case, mass, want.total),
            f"{where}: {mass} of the reward reaches trained tokens, {want.total} was paid",
        )
    if row.total is not None:
        _must(
            math.isfinite(row.total),
            f"{where}: the total is {row.total}, although the episode is not failed",
        )
        _must(
            _is_paid(case, row.total, want.total),
            f"{where}: the total is {row.total}, {want.total} was paid",
        )


def _check_logprobs(where: str, row: TrainedSequence, want: TrainedSequence) -> None:
    """Those of the sampler where a token is trained, 0.0 where nobody sampled it; frameworks differ on turns that are masked."""
    if row.logprobs is None:
        return
    _must(
        len(row.logprobs) == len(row.ids),
        f"{where}: {len(row.logprobs)} logprobs stand against {len(row.ids)} ids",
    )
    for found, sampled, trained in zip(row.logprobs, want.logprobs or (), want.mask):
        if sampled == 0.0:  # that of no golden token
            _must(
                found == 0.0,
                f"{where}: a token that nobody sampled has the logprob {found}, not 0.0",
            )
        elif trained or found != 0.0:
            _must(
                abs(found - sampled) <= 1e-6,
                f"{where}: logprobs are not aligned with the sampled ids",
            )


def _check_sum(case: Case, rows: Sequence[TrainedSequence], carries: frozenset[str]) -> None:
    """Σ(totals) = Σ(environment rewards), rows that train nothing included, for episodes without masked or failed turns."""
    plain = all(_plain(e) and len(token_sequences(e)) <= 1 for e in case.episodes)
    if "total" not in carries or not plain:
        return
    total, paid = sum(row.total or 0.0 for row in rows), sum(sum(e.rewards) for e in case.episodes)
    _must(
        _is_paid(case, total, paid),
        f"the rows carry {total} of reward; the environment paid {paid}",
    )


def _is_paid(case: Case, found: float, paid: float | None) -> bool:
    """Whether a sum of rewards is what the environment paid; anything is, where `paid` is None."""
    scale = max((abs(r) for e in case.episodes for r in e.rewards), default=1.0)
    return paid is None or abs(found - paid) <= 1e-6 * max(scale, 1.0)


def _plain(episode: Episode) -> bool:
    return not episode.failed and all(episode.trained(turn) for turn in range(len(episode.turns)))


def _unknown(total: float | None) -> bool:
    return total is None or math.isnan(total)


def _train_check(harness: Harness, case: Case) -> Callable[[], None]:
    return lambda: check_sequences(harness, case, harness.train(case))


def _outcome(harness: Harness, name: str, case: Case, check: Callable[[], None]) -> Result:
    lacking = sorted(need for need in case.needs if not getattr(harness.adapter.capabilities, need))
    try:
        check()
    except _Failed as failed:
        return Result(name, "FAILED", str(failed))
    except GemError as refused:
        if lacking:
            return Result(name, "refused", str(refused).split(";")[0])
        return Result(name, "FAILED", f"refused, although the adapter states no lack: {refused}")
    except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
        return Result(name, "FAILED", f"{type(error).__name__}: {error}")
    if lacking:
        return Result(
            name,
            "FAILED",
            f"trained, although the adapter states that it lacks {', '.join(lacking)}",
        )
    return Result(name, "ok")


def _carries(harness: Harness) -> frozenset[str]:
    found = harness.carries
    _must(
        found <= {*CARRIED}, f"the harness carries {sorted(found)}; known are {', '.join(CARRIED)}"
    )
    _must(
        bool(found & {"rewards", "total"}),
        f"the harness says that it carries {sorted(found)}: the reward mass cannot be seen; set `carries`, with rewards or total",
    )
    return found


def _expected(
    case: Case, part: Sequence[Episode], sequence_per_turn: bool
) -> list[TrainedSequence]:
    """The rows of some of the case's episodes, credited within all of them; `total` is set where it follows from invariant 2."""
    found = []
    numbers = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
    credit = {id(episode): per_turn for episode, per_turn in zip(case.episodes, numbers)}
    for episode in part:
        per_turn, rewards = credit[id(episode)], episode.rewards
        views = token_sequences(episode)
        totals = [sum(rewards)] if len(views) == 1 else [None] * len(views)
        if sequence_per_turn:
            played = [turn for view in views for turn, _, _ in view.spans]
            views, totals = (
                [_turn_row(episode, turn) for turn in played],
                [rewards[turn] for turn in played],
            )
        for view, total in zip(views, totals):
            credited = view.broadcast(per_turn)
            found.append(
                TrainedSequence(
                    view.ids,
                    view.mask,
                    credited,
                    view.logprobs,
                    total=total if _plain(episode) else None,
                )
            )
    return found


def _turn_row(episode: Episode, number: int) -> TokenSequence:
    prompt, turn = episode.prompt_ids(number), episode.turns[number]
    turn_of = (-1,) * len(prompt) + (number,) * len(turn.action_ids)
    logprobs = None if turn.logprobs is None else (0.0,) * len(prompt) + tuple(turn.logprobs)
    trained = frozenset({number} if episode.trained(number) else ())
    return TokenSequence((*prompt, *turn.action_ids), turn_of, logprobs, trained)


def _tolerance(case: Case) -> float:
    """1e-6, and 2e-7·S/std for a float32 channel; `reinforce` and `rloo` are in the rewards' own unit, so that std is 1."""
    returns = [
        g for e in case.episodes if not e.failed for g in discounted_returns(e.rewards, case.gamma)
    ]
    largest = max(
        (abs(x) for x in (*returns, *(r for e in case.episodes for r in e.rewards))), default=0.0
    )
    mean = sum(returns) / len(returns) if returns else 0.0
    std = (sum((g - mean) ** 2 for g in returns) / len(returns)) ** 0.5 if returns else 0.0
    if case.estimator in ("reinforce", "rloo") or std <= 1e-6 * largest:
        std = 1.0
    return 1e-6 + 2e-7 * largest / std


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _must(true: bool, otherwise: str) -> None:
    if not true:
        raise _Failed(otherwise)
