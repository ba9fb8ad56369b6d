"""Kit: the checks every adapter passes or refuses, and the table they are printed as.

The numbers are those of DESIGN: token identity and masks exactly, reward mass and advantages within 1e-6 (and 2e-7·S/std where
a framework's own channel is float32), the gradient within 1e-4 of the reference up to the factor the harness states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gem_core.adapter import Adapter
from gem_core.advantage import advantages
from gem_core.conformance.golden import CASES, ONE_RANK_VOID, Case, gradient_case
from gem_core.errors import GemError
from gem_core.tokens import TokenView, discounted_returns, token_views
from gem_core.types import Episode

__all__ = ["Harness", "Result", "TrainedRow", "report", "run"]


@dataclass(frozen=True)
class TrainedRow:
    """One row as the framework's loss sees it, padding taken off."""

    ids: Sequence[int]
    """Prompt and response."""
    mask: Sequence[int]
    """1 for each id whose log-probability is trained, aligned with `ids`."""
    advantages: Sequence[float]
    """Aligned with `ids`."""
    logprobs: Sequence[float] | None = None
    """Those of the sampler, aligned with `ids`; None where the framework does not carry them in this setting."""
    rewards: Sequence[float] | None = None
    """Token rewards, where the framework carries them."""
    total: float | None = None
    """The reward of the whole row, where the framework carries one number."""


class Harness(Protocol):
    """What an adapter supplies: its framework's own batch, advantage and loss code, driven with given episodes."""

    adapter: Adapter
    version: str
    gradient_factor: float
    """The framework's loss is this many times the canonical one under one update over the whole batch."""
    row_per_turn: bool
    """Whether the framework trains every turn as a row of its own, its whole prompt before it; False where it is not said."""

    def train(self, case: Case) -> list[TrainedRow]:
        """The rows of a batch, in the order of the episodes, placeholders included, padding rows left out."""
        ...

    def gradient(self, case: Case) -> Mapping[str, Any]:
        """The gradient of the framework's own loss on the tiny model, by parameter name, as torch tensors."""
        ...

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedRow]]:
        """The rows of each rank when the batch is split over real processes."""
        ...


@dataclass(frozen=True)
class Result:
    """What came of one check of one case."""

    case: str
    outcome: str
    """`ok`, `refused`, or `FAILED`."""
    why: str = ""


class _Failed(AssertionError):
    pass


def run(harness: Harness, *, ranks: bool = True, progress: Callable[[Result], None] | None = None) -> list[Result]:
    """All golden cases, two ranks against one, and the gradient."""
    work: list[tuple[str, Case, Callable[[], None]]] = [(case.name, case, _train_check(harness, case)) for case in CASES]
    if ranks:
        work.append(("two ranks against one", _case("ragged turns"), lambda: check_ranks(harness, _case("ragged turns"))))
        if harness.adapter.capabilities.groups:
            work.append(("a group over two ranks", _case("groups, grpo"), lambda: check_ranks(harness, _case("groups, grpo"))))
        if harness.adapter.capabilities.void_episodes:
            work.append(("a rank with nothing but void episodes", ONE_RANK_VOID, lambda: check_ranks(harness, ONE_RANK_VOID)))
    work.append(("gradient against the reference", gradient_case(), lambda: check_gradient(harness)))
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


def check_rows(case: Case, rows: Sequence[TrainedRow], *, row_per_turn: bool = False) -> None:
    """Token identity, masks, logprobs, reward mass and turn credit of a whole batch."""
    _check_tokens(case, rows, _expected(case, case.episodes, row_per_turn))
    _check_reward_mass(case, rows)


def _check_tokens(case: Case, rows: Sequence[TrainedRow], expected: Sequence[TrainedRow]) -> None:
    trained = [row for row in rows if any(row.mask)]
    for row in rows:
        _must(
            len(row.ids) == len(row.mask) == len(row.advantages), f"a row of {len(row.ids)} ids has {len(row.mask)} mask entries"
        )
        untrained = [a for a, m in zip(row.advantages, row.mask) if not m]
        _must(all(a == 0.0 for a in untrained), "an advantage stands on a token that is not trained")
    _must(len(trained) == len(expected), f"{len(trained)} rows are trained; {len(expected)} were played")
    for number, (row, want) in enumerate(zip(trained, expected)):
        where = f"row {number}"
        _must(
            list(row.ids) == list(want.ids),
            f"{where}: the ids are not those that were sampled: {list(row.ids)} against {list(want.ids)}",
        )
        _must(list(row.mask) == list(want.mask), f"{where}: the mask is {list(row.mask)}, not {list(want.mask)}")
        if row.logprobs is not None:
            _must(len(row.logprobs) == len(row.ids), f"{where}: {len(row.logprobs)} logprobs stand against {len(row.ids)} ids")
            pairs = zip(row.logprobs, want.logprobs or (), want.mask)
            _must(all(abs(a - b) <= 1e-6 for a, b, m in pairs if m), f"{where}: logprobs are not aligned with the sampled ids")
        allowed = _tolerance(case)
        wrong = [(a, b) for a, b in zip(row.advantages, want.advantages) if not abs(a - b) <= allowed]  # not >, for NaN
        _must(not wrong, f"{where}: {len(wrong)} advantages are off by more than {allowed:.3g}, the first is {wrong[:1]}")


def check_ranks(harness: Harness, case: Case) -> None:
    """Split over two processes, every token gets what it got in one."""
    parts = [case.episodes[::2], case.episodes[1::2]]  # so that the members of a group are on different ranks
    ranks = harness.ranks(case, parts)
    for rows, part in zip(ranks, parts):
        _check_tokens(case, rows, _expected(case, part, _row_per_turn(harness)))
    _check_reward_mass(case, [row for rows in ranks for row in rows])


def check_gradient(harness: Harness) -> None:
    """The framework's gradient against the committed one."""
    from gem_core.conformance.reference import distance, load_reference

    apart, norm = distance(harness.gradient(gradient_case()), load_reference(), harness.gradient_factor)
    _must(apart <= 1e-4 * norm + 1e-7, f"the gradient is {apart:.3g} away from the reference, whose norm is {norm:.3g}")


def _train_check(harness: Harness, case: Case) -> Callable[[], None]:
    return lambda: check_rows(case, harness.train(case), row_per_turn=_row_per_turn(harness))


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
        return Result(name, "FAILED", f"trained, although the adapter states that it lacks {', '.join(lacking)}")
    return Result(name, "ok")


def _row_per_turn(harness: Harness) -> bool:
    return bool(getattr(harness, "row_per_turn", False))


def _expected(case: Case, part: Sequence[Episode], row_per_turn: bool) -> list[TrainedRow]:
    """The rows of some of the case's episodes, credited within all of them."""
    found = []
    numbers = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
    credit = {id(episode): per_turn for episode, per_turn in zip(case.episodes, numbers)}
    for episode in part:
        per_turn = credit[id(episode)]
        views = token_views(episode)
        if row_per_turn:
            views = [_turn_row(episode, t) for view in views for t in sorted(view.trained)]
        found += [TrainedRow(view.ids, view.mask, view.spread(per_turn), view.logprobs) for view in views if any(view.mask)]
    return found


def _turn_row(episode: Episode, number: int) -> TokenView:
    prompt, turn = episode.prompt_ids(number), episode.turns[number]
    turn_of = (-1,) * len(prompt) + (number,) * len(turn.action_ids)
    logprobs = None if turn.logprobs is None else (0.0,) * len(prompt) + tuple(turn.logprobs)
    return TokenView((*prompt, *turn.action_ids), turn_of, logprobs, frozenset({number}))


def _check_reward_mass(case: Case, rows: Sequence[TrainedRow]) -> None:
    """Σ(token reward × mask) = Σ(environment rewards), for episodes without masked or void turns."""
    plain = all(not e.void and all(e.trained(t) for t in range(len(e.turns))) for e in case.episodes)
    single = all(len(token_views(e)) <= 1 for e in case.episodes)
    if not (plain and single):
        return
    paid = sum(sum(e.rewards) for e in case.episodes)
    scale = max((abs(r) for e in case.episodes for r in e.rewards), default=1.0)
    if all(row.rewards is not None for row in rows):
        mass = sum(r * m for row in rows for r, m in zip(row.rewards or (), row.mask))
        _must(
            abs(mass - paid) <= 1e-6 * max(scale, 1.0),
            f"{mass} of the reward reaches trained tokens; the environment paid {paid}",
        )
    if all(row.total is not None for row in rows):
        total = sum(row.total or 0.0 for row in rows)
        _must(abs(total - paid) <= 1e-6 * max(scale, 1.0), f"the rows carry {total} of reward; the environment paid {paid}")


def _tolerance(case: Case) -> float:
    """1e-6, and 2e-7·S/std for a float32 channel; `reinforce` and `rloo` are in the rewards' own unit, so that std is 1."""
    returns = [g for e in case.episodes if not e.void for g in discounted_returns(e.rewards, case.gamma)]
    largest = max((abs(x) for x in (*returns, *(r for e in case.episodes for r in e.rewards))), default=0.0)
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
