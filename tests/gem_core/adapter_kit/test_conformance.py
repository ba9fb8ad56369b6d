"""The conformance kit: a harness that keeps the invariants passes, and each way of breaking one is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gem_core.adapter_kit.conformance import CASES, GRADIENT_CASES, Case, TrainedSequence, run
from gem_core.adapter_kit.conformance.golden import END
from gem_core.adapter_kit.conformance.kit import check_ranks, check_sequences
from gem_core.adapter_kit.conformance.reference import reference_path
from gem_core.adapter_kit.declaration import Adapter, Capabilities
from gem_core.training.advantage import advantages
from gem_core.training.sequences import channel_rewards, padding_sequence, token_sequences
from gem_core.types import Episode

BY_NAME = {case.name: case for case in CASES}
RAGGED, CRASH, MASKED = (
    BY_NAME[n] for n in ("ragged turns", "a crash after non-zero rewards", "a masked middle turn")
)
ADAPTER = Adapter(
    name="sound",
    package="gem_sound",
    distribution="sound",
    import_name="sound",
    extra="sound",
    versions=">=1",
    python=">=3.10",
    platforms=("*",),
    install=(),
    capabilities=Capabilities(
        several_sequences=True,
        masked_turns=True,
        failed_episodes=True,
        groups=True,
        critic_values=True,
    ),
    status="ready",
    summary="a trainer for tests",
)


class Sound:
    """A harness without a framework, which carries all there is: rows in the order of the episodes."""

    adapter = ADAPTER
    version = "1"
    carries = frozenset({"logprobs", "rewards", "total"})
    sequence_per_turn = False
    padding_has_logprobs = False

    def train(self, case: Case) -> list[TrainedSequence]:
        return self._rows(case, case.episodes)

    def ranks(self, case: Case, parts: Sequence[Sequence[Episode]]) -> list[list[TrainedSequence]]:
        return [self._rows(case, part) for part in parts]

    def gradient(self, case: Case) -> dict[str, Any]:
        return {}

    def gradient_factor(self, case: Case) -> float:
        return 1.0

    def _rows(self, case: Case, part: Sequence[Episode]) -> list[TrainedSequence]:
        numbers = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
        credit = {id(episode): per_turn for episode, per_turn in zip(case.episodes, numbers)}
        found = []
        for episode in part:
            views = token_sequences(episode) or [
                padding_sequence(episode.prompt_ids(0) if episode.turns else (END,), END)
            ]
            total = math.nan if episode.failed else episode.total_reward
            found += [
                TrainedSequence(
                    v.ids,
                    v.mask,
                    v.broadcast(credit[id(episode)]),
                    v.logprobs,
                    channel_rewards(episode, v, case.gamma),
                    total,
                )
                for v in views
            ]
        return found


class Flawed(Sound):
    """The same with its rows spoiled."""

    def __init__(
        self,
        spoil: Callable[[list[TrainedSequence]], list[TrainedSequence]],
        carries: frozenset[str] = Sound.carries,
    ) -> None:
        self.spoil, self.carries = spoil, carries

    def _rows(self, case: Case, part: Sequence[Episode]) -> list[TrainedSequence]:
        return self.spoil(super()._rows(case, part))


def each(**changes: Any) -> Callable[[list[TrainedSequence]], list[TrainedSequence]]:
    """Changes fields of every row; a function is given the row."""
    return lambda rows: [
        replace(r, **{k: v(r) if callable(v) else v for k, v in changes.items()}) for r in rows
    ]


def first(**changes: Any) -> Callable[[list[TrainedSequence]], list[TrainedSequence]]:
    """The same for the first row."""
    return lambda rows: each(**changes)(rows[:1]) + rows[1:]


def minus_seven(row: TrainedSequence) -> list[float]:
    return [p if p else -7.0 for p in row.logprobs or ()]


def shifted(rows: list[TrainedSequence]) -> list[TrainedSequence]:
    """Each row has the total of the one before it: their sum is right."""
    return [replace(row, total=before.total) for row, before in zip(rows, [rows[-1], *rows])]


def last_one_only(row: TrainedSequence) -> list[float]:
    return [r if i == len(row.ids) - 1 else 0.0 for i, r in enumerate(row.rewards or ())]


def moved(row: TrainedSequence) -> list[float]:
    """All of it on the first token, which nobody sampled."""
    return [sum(row.rewards or ()), *[0.0] * (len(row.ids) - 1)]


def test_every_golden_case_passes_a_sound_harness() -> None:
    found = {r.case: r for r in run(Sound())}
    assert {
        name: r
        for name, r in found.items()
        if r.outcome != "ok" and "against the reference" not in name
    } == {}
    assert {c.name for c in CASES} < set(found)
    assert [name for name in found if "against the reference" in name] == [
        f"{c.name} against the reference" for c in GRADIENT_CASES
    ]


FLAWS: list[tuple[str, Callable[[list[TrainedSequence]], list[TrainedSequence]], Case, str]] = [
    ("no logprobs", each(logprobs=None), RAGGED, "row 0 has no `logprobs`"),
    ("no logprobs in one row", lambda rows: [*rows[:-1], replace(rows[-1], logprobs=None)], RAGGED, "row 3 has no `logprobs`"),
    ("logprobs where nobody sampled", each(logprobs=minus_seven), RAGGED, "nobody sampled has the logprob -7.0"),
    ("logprobs on a placeholder", first(logprobs=minus_seven), CRASH, "a placeholder, of which nobody sampled anything"),
    ("logprobs shifted", each(logprobs=lambda r: [*r.logprobs[1:], 0.0]), RAGGED, "nobody sampled|not aligned"),
    ("a logprob is NaN", each(logprobs=lambda r: [p and math.nan for p in r.logprobs]), RAGGED, "not aligned"),
    ("another logprob on a masked turn", each(logprobs=lambda r: [p and p - 1.0 * (not m) for p, m in zip(r.logprobs, r.mask)]),
     MASKED, "not aligned"),
    ("neither rewards nor totals", each(rewards=None, total=None), RAGGED, "row 0 has no `rewards`"),
    ("no totals", each(total=None), RAGGED, "row 0 has no `total`"),
    ("totals wrong, one missing", lambda rows: first(total=None)(each(total=lambda r: r.total * 2)(rows)), RAGGED, "no `total`"),
    ("totals wrong, one NaN", lambda rows: first(total=math.nan)(each(total=lambda r: r.total * 2)(rows)), RAGGED, "not failed"),
    ("one NaN", first(total=math.nan), RAGGED, "the total is nan, although the episode is not failed"),
    ("totals of other rows", shifted, RAGGED, "was paid"),
    ("totals doubled beside a failed episode", each(total=lambda r: r.total * 2), CRASH, "was paid"),
    ("no total of an episode with masked turns only", lambda rows: [rows[0], replace(rows[1], total=math.nan), rows[2]], MASKED,
     "1 rows have no total, and 0 episodes are failed"),
    ("a total on an episode without turns", lambda rows: [*rows[:1], replace(rows[1], total=5.0), *rows[2:]],
     BY_NAME["context full"], "the rows carry"),
    ("the last turn's reward only", each(rewards=last_one_only), RAGGED, "of the reward reaches trained tokens"),
    ("the last turn's reward only, beside a failed episode", each(rewards=last_one_only), CRASH, "reaches trained tokens"),
    ("rewards on tokens nobody sampled", each(rewards=moved), RAGGED, "of the reward reaches trained tokens"),
    ("a reward is NaN", first(rewards=lambda r: [math.nan, *r.rewards[1:]]), RAGGED, "a reward is not a number"),
    ("rewards too short", each(rewards=lambda r: r.rewards[1:]), RAGGED, "rewards stand against"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "case", "says"), [f[1:] for f in FLAWS], ids=[f[0] for f in FLAWS]
)
def test_the_kit_sees_a_flaw(
    spoil: Callable[[list[TrainedSequence]], list[TrainedSequence]], case: Case, says: str
) -> None:
    wrong = Flawed(spoil)
    with pytest.raises(AssertionError, match=says):
        check_sequences(wrong, case, wrong.train(case))
    (result,) = [r for r in run(wrong, ranks=False) if r.case == case.name]
    assert result.outcome == "FAILED"


@pytest.mark.parametrize(
    "spoil", [each(logprobs=minus_seven), first(total=math.nan), each(rewards=None)]
)
def test_the_kit_sees_a_flaw_on_ranks(
    spoil: Callable[[list[TrainedSequence]], list[TrainedSequence]],
) -> None:
    check_ranks(Sound(), RAGGED)
    with pytest.raises(AssertionError):
        check_ranks(Flawed(spoil), RAGGED)


@pytest.mark.parametrize(
    ("carries", "spoil"),
    [
        ({"rewards"}, each(logprobs=None, total=None)),
        ({"logprobs", "total"}, each(rewards=None)),
        ({"logprobs", "rewards"}, each(total=None)),
        (
            {"logprobs", "total"},
            each(logprobs=lambda r: [p * m for p, m in zip(r.logprobs, r.mask)]),
        ),
        ({"logprobs", "total"}, each(total=lambda r: 0.0 if math.isnan(r.total) else r.total)),
    ],
    ids=[
        "token rewards only",
        "no token rewards",
        "no totals",
        "0.0 on masked turns",
        "0.0 for failed episodes",
    ],
)
def test_what_a_framework_does_not_carry_is_not_asked_for(carries: set[str], spoil: Any) -> None:
    sound = Flawed(spoil, frozenset(carries))
    for case in (RAGGED, CRASH, MASKED):
        check_sequences(sound, case, sound.train(case))


@pytest.mark.parametrize(
    ("carries", "says"),
    [
        (set(), "set `carries`"),
        ({"logprobs"}, "cannot be seen"),
        ({"total", "values"}, "known are logprobs, rewards, total"),
    ],
)
def test_a_harness_says_what_it_carries(carries: set[str], says: str) -> None:
    silent = Flawed(list, frozenset(carries))
    assert all(says in r.why for r in run(silent) if "reference" not in r.case)
    with pytest.raises(AssertionError, match=says):
        check_sequences(silent, RAGGED, silent.train(RAGGED))


def test_a_harness_may_say_that_placeholders_have_the_trainers_logprobs() -> None:
    settled = Flawed(first(logprobs=minus_seven))
    settled.padding_has_logprobs = True
    check_sequences(settled, CRASH, settled.train(CRASH))
    with pytest.raises(AssertionError, match="nobody sampled has the logprob"):
        check_sequences(settled, RAGGED, settled.train(RAGGED))


def test_each_gradient_is_committed() -> None:
    assert len({reference_path(case) for case in GRADIENT_CASES}) == len(GRADIENT_CASES) == 2
    assert all(reference_path(case).is_file() for case in GRADIENT_CASES)


def test_the_second_gradient_shows_who_counts_what_is_not_trained() -> None:
    """In the first, the sampled tokens are the trained ones, and no row is a placeholder."""
    for case, more in zip(GRADIENT_CASES, (False, True)):
        views = [view for episode in case.episodes for view in token_sequences(episode)]
        sampled, trained = (
            sum(t >= 0 for v in views for t in v.turn_of),
            sum(sum(v.mask) for v in views),
        )
        assert (sampled > 1.2 * trained) is more
        assert any(episode.failed for episode in case.episodes) is more
