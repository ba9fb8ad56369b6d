"""Kit: the checks that every adapter must pass, and the table of their results.

Tolerances: ids and loss masks must be equal; reward mass and advantages agree within 1e-6 (plus
2e-7·S/std, because some frameworks carry them in float32); the gradient agrees with the reference
within 1e-4, up to the harness's `gradient_factor`. In bfloat16, its cosine with the reference in
float32 is at least 0.999, and its norm agrees within 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from gem_conformance.expected import expected_of
from gem_conformance.golden import CASES, GRADIENT_CASES, ONE_RANK_FAILED, Case
from gem_conformance.harness import CARRIED, Harness, TrainedSequence
from gem_conformance.played import PLAYED_CASES, PlayedCase, differences, scripted_env
from gem_core.errors import GemError
from gem_core.types import Episode

__all__ = [
    "Result",
    "check_gradient",
    "check_play",
    "check_ranks",
    "check_sequences",
    "report",
    "run",
]


@dataclass(frozen=True)
class Result:
    """The outcome of one check."""

    case: str
    outcome: str
    """`ok`, `rejected`, or `FAILED`."""
    why: str = ""
    """Why it was not ok; in bfloat16 also how far the gradient is from the reference."""


class _CheckFailed(AssertionError):
    pass


def run(
    harness: Harness,
    *,
    ranks: bool = True,
    played: bool = True,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Check all golden cases, two ranks against one, the gradients, and the played cases."""
    checks: list[tuple[str, Case, Callable[[], str | None]]] = [
        (case.name, case, _train_check(harness, case)) for case in CASES
    ]
    if ranks:
        supported = harness.adapter.capabilities
        split = [("two ranks against one", _case("ragged turns"))]
        if supported.groups:
            split.append(("a group over two ranks", _case("groups, grpo")))
        if supported.failed_episodes:
            split.append(("a rank with nothing but failed episodes", ONE_RANK_FAILED))
        outputs = cache(lambda: harness.ranks_of_batches([(c, _halves(c)) for _, c in split]))
        checks += [
            (name, case, partial(_check_output, harness, case, outputs, i))
            for i, (name, case) in enumerate(split)
        ]
    checks += [
        (f"{case.name} against the reference", case, partial(check_gradient, harness, case))
        for case in GRADIENT_CASES
    ]
    results = []
    for name, case, check in checks:
        results.append(_outcome(harness, name, case.needs, check))
        if progress is not None:
            progress(results[-1])
    for batch in PLAYED_CASES if played else ():
        check = partial(check_play, harness, batch)
        results.append(_outcome(harness, f"played: {batch.name}", frozenset(), check))
        if progress is not None:
            progress(results[-1])
    return results


def report(harness: Harness, results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    head = f"{harness.adapter.name} {harness.version}"
    lines = [f"| check | {head} |", "|---|---|"]
    lines += [f"| {r.case} | {r.outcome}{': ' + r.why if r.why else ''} |" for r in results]
    return "\n".join(lines)


def check_play(harness: Harness, case: PlayedCase) -> None:
    """Check that the adapter's rollout plays the seeds in order and keeps what the engine gave."""
    with scripted_env():
        episodes = harness.play(case)
    found = differences(case, episodes, harness.max_context, harness.end_id)
    _require(not found, "; ".join(found[:3]))


def check_sequences(harness: Harness, case: Case, sequences: Sequence[TrainedSequence]) -> None:
    """Check ids, loss masks, logprobs, reward mass and advantages of a batch."""
    _check_part(harness, case, sequences, case.episodes)
    _check_sum(case, sequences, _carries(harness))


def check_ranks(harness: Harness, case: Case) -> None:
    """Check that a batch split over two processes gives every token the same advantage."""
    _check_ranks(harness, case, harness.ranks(case, _halves(case)))


def _check_ranks(harness: Harness, case: Case, ranks: Sequence[Sequence[TrainedSequence]]) -> None:
    for sequences, part in zip(ranks, _halves(case)):
        _check_part(harness, case, sequences, part)
    _check_sum(case, [s for sequences in ranks for s in sequences], _carries(harness))


def _check_output(
    harness: Harness,
    case: Case,
    outputs: Callable[[], list[list[list[TrainedSequence]]]],
    index: int,
) -> None:
    _check_ranks(harness, case, outputs()[index])


def _halves(case: Case) -> list[Sequence[Episode]]:
    """Split a batch in a way that separates the members of a group."""
    return [case.episodes[::2], case.episodes[1::2]]


def check_gradient(harness: Harness, case: Case = GRADIENT_CASES[0]) -> str:
    """Compare the framework's gradient with the committed one; in bfloat16 return its cosine."""
    from gem_conformance.reference import cosine, distance, load_reference

    gradient, reference = harness.gradient(case), load_reference(case)
    difference, norm = distance(gradient, reference, harness.gradient_factor(case))
    if harness.bfloat16:
        length, _ = distance(gradient, {})
        alike = cosine(gradient, reference)
        _require(
            alike >= 0.999 and abs(length - norm) <= 0.02 * norm,
            f"in bfloat16 the gradient has the cosine {alike:.5f} with the "
            f"reference and the norm {length:.3g}; expected at least 0.999 and {norm:.3g}",
        )
        return f"cosine {alike:.5f}"
    _require(
        difference <= 1e-4 * norm + 1e-7,
        f"the gradient is {difference:.3g} away from the reference, whose norm is {norm:.3g}",
    )
    return ""


def _check_part(
    harness: Harness, case: Case, sequences: Sequence[TrainedSequence], part: Sequence[Episode]
) -> None:
    """Check the sequences of some of the case's episodes."""
    carries = _carries(harness)
    played = _expected(case, part, harness.sequence_per_turn)
    expected = [sequence for sequence in played if any(sequence.mask)]
    untrained = {tuple(s.ids): s for s in played if not any(s.mask)}
    for sequence in sequences:
        _require(
            len(sequence.ids) == len(sequence.mask) == len(sequence.advantages),
            f"a sequence of {len(sequence.ids)} ids has {len(sequence.mask)} mask entries "
            f"and {len(sequence.advantages)} advantages",
        )
        masked = [a for a, m in zip(sequence.advantages, sequence.mask) if not m]
        _require(not any(masked), "a sequence has an advantage on a token that is not trained")
        if not any(sequence.mask):
            own = untrained.get(tuple(sequence.ids))
            if own is not None:
                _check_logprobs("an untrained sequence", sequence, own)
            elif not harness.padding_has_logprobs:
                _require(
                    not any(sequence.logprobs or ()),
                    "a padding sequence has logprobs other than 0.0",
                )
    trained = [sequence for sequence in sequences if any(sequence.mask)]
    _require(
        len(trained) == len(expected),
        f"{len(trained)} sequences are trained; {len(expected)} were played",
    )
    for number, (sequence, want) in enumerate(zip(trained, expected)):
        _check_sequence(f"sequence {number}", case, sequence, want, carries)
    if "total" in carries:
        unknown, failed = sum(_unknown(s.total) for s in sequences), sum(e.failed for e in part)
        _require(
            unknown <= failed, f"{unknown} sequences have no total, but {failed} episodes failed"
        )


def _check_sequence(
    where: str,
    case: Case,
    sequence: TrainedSequence,
    expected: TrainedSequence,
    carries: frozenset[str],
) -> None:
    ids, mask = list(sequence.ids), list(sequence.mask)
    _require(
        ids == list(expected.ids),
        f"{where}: the ids are {ids}, but {list(expected.ids)} were sampled",
    )
    _require(mask == list(expected.mask), f"{where}: the mask is {mask}, not {list(expected.mask)}")
    for name in sorted(carries):
        _require(
            getattr(sequence, name) is not None,
            f"{where} has no `{name}`, but the harness declares it in `carries`",
        )
    _check_logprobs(where, sequence, expected)
    allowed = _tolerance(case)
    wrong = [
        (a, b)
        for a, b in zip(sequence.advantages, expected.advantages)
        if not abs(a - b) <= allowed  # not >, for NaN
    ]
    _require(
        not wrong,
        f"{where}: {len(wrong)} advantages are off by more than {allowed:.3g}, "
        f"the first is {wrong[:1]}",
    )
    if sequence.rewards is not None:
        _require(
            len(sequence.rewards) == len(ids),
            f"{where} has {len(sequence.rewards)} rewards for {len(ids)} ids",
        )
        _require(all(map(math.isfinite, sequence.rewards)), f"{where}: a reward is not finite")
        inside = [r for r, m, after in zip(sequence.rewards, mask, [*mask[1:], 0]) if m and after]
        _require(not any(inside), f"{where}: a reward is not on the last token of its turn")
        mass = sum(r * m for r, m in zip(sequence.rewards, mask))
        _require(
            _is_total(case, mass, expected.total),
            f"{where}: trained tokens get a reward of {mass}, but the turns have {expected.total}",
        )
    if sequence.total is not None:
        _require(
            math.isfinite(sequence.total),
            f"{where}: the total is {sequence.total}, but the episode did not fail",
        )
        _require(
            _is_total(case, sequence.total, expected.total),
            f"{where}: the total is {sequence.total}, but the turns have {expected.total}",
        )


def _check_logprobs(where: str, sequence: TrainedSequence, expected: TrainedSequence) -> None:
    """Check that logprobs are the sampler's; masked turns may have 0.0, unsampled tokens must."""
    if sequence.logprobs is None:
        return
    _require(
        len(sequence.logprobs) == len(sequence.ids),
        f"{where} has {len(sequence.logprobs)} logprobs for {len(sequence.ids)} ids",
    )
    for actual, sampled, trained in zip(sequence.logprobs, expected.logprobs or (), expected.mask):
        if sampled == 0.0:  # no golden token was sampled with 0.0
            _require(
                actual == 0.0,
                f"{where}: an unsampled token has the logprob {actual}, not 0.0",
            )
        elif trained or actual != 0.0:
            _require(
                abs(actual - sampled) <= 1e-6,
                f"{where}: logprobs are not aligned with the sampled ids",
            )


def _check_sum(case: Case, sequences: Sequence[TrainedSequence], carries: frozenset[str]) -> None:
    """Check Σ(totals) = Σ(environment rewards) if no turn is masked or failed."""
    single = all(len(expected.sequences) <= 1 for expected in expected_of(case))
    plain = single and all(_plain(e) for e in case.episodes)
    if "total" not in carries or not plain:
        return
    total = sum(sequence.total or 0.0 for sequence in sequences)
    rewarded = sum(sum(e.rewards) for e in case.episodes)
    _require(
        _is_total(case, total, rewarded),
        f"the totals of all sequences sum to {total}, but the turns have {rewarded}",
    )


def _is_total(case: Case, total: float, expected: float | None) -> bool:
    """Whether a sum of rewards is the expected one; True if `expected` is None."""
    scale = max((abs(r) for e in case.episodes for r in e.rewards), default=1.0)
    return expected is None or abs(total - expected) <= 1e-6 * max(scale, 1.0)


def _plain(episode: Episode) -> bool:
    return not episode.failed and all(episode.trained(turn) for turn in range(len(episode.turns)))


def _unknown(total: float | None) -> bool:
    return total is None or math.isnan(total)


def _train_check(harness: Harness, case: Case) -> Callable[[], str | None]:
    return lambda: check_sequences(harness, case, harness.train(case))


def _outcome(
    harness: Harness, name: str, needs: frozenset[str], check: Callable[[], str | None]
) -> Result:
    lacking = sorted(need for need in needs if not getattr(harness.adapter.capabilities, need))
    try:
        remark = check() or ""
    except _CheckFailed as failed:
        return Result(name, "FAILED", str(failed))
    except GemError as rejected:
        if lacking:
            return Result(name, "rejected", str(rejected).split(";")[0])
        why = f"rejected, but the adapter declares all required capabilities: {rejected}"
        return Result(name, "FAILED", why)
    except Exception as error:  # noqa: BLE001 - one check must not prevent the others
        return Result(name, "FAILED", f"{type(error).__name__}: {error}")
    if lacking:
        why = f"trained, but the adapter does not declare {', '.join(lacking)}"
        return Result(name, "FAILED", why)
    return Result(name, "ok", remark)


def _carries(harness: Harness) -> frozenset[str]:
    carries = harness.carries
    _require(
        carries <= {*CARRIED},
        f"the harness carries {sorted(carries)}; known are {', '.join(CARRIED)}",
    )
    _require(
        bool(carries & {"rewards", "total"}),
        f"the harness carries {sorted(carries)}, so the reward mass cannot be checked; "
        "add rewards or total to `carries`",
    )
    return carries


def _expected(
    case: Case, part: Sequence[Episode], sequence_per_turn: bool
) -> list[TrainedSequence]:
    """Return the expected sequences of `part`, with advantages over the full batch."""
    per_episode = {id(e): expected for e, expected in zip(case.episodes, expected_of(case))}
    of_part = [per_episode[id(episode)] for episode in part]
    return [s for f in of_part for s in (f.turns if sequence_per_turn else f.sequences)]


def _tolerance(case: Case) -> float:
    """1e-6 + 2e-7·S/std, for float32; std is 1 for estimators that do not divide by it."""
    rewards = [r for e in case.episodes for r in e.rewards]
    returns = [
        g
        for episode, expected in zip(case.episodes, expected_of(case))
        if not episode.failed
        for g in expected.returns
    ]
    largest = max((abs(x) for x in (*returns, *rewards)), default=0.0)
    mean = sum(returns) / len(returns) if returns else 0.0
    std = (sum((g - mean) ** 2 for g in returns) / len(returns)) ** 0.5 if returns else 0.0
    if case.estimator in ("reinforce", "rloo") or std <= 1e-6 * largest:
        std = 1.0
    return 1e-6 + 2e-7 * largest / std


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _CheckFailed(message)
