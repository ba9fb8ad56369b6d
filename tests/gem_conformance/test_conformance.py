"""Conformance kit: a correct harness passes, and the kit detects each violated invariant."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gem_conformance import CASES, GRADIENT_CASES, Case, TrainedSequence, run
from gem_conformance.expected import expected_of
from gem_conformance.golden import ONE_RANK_FAILED
from gem_conformance.kit import check_ranks, check_sequences
from gem_conformance.reference import reference_path
from sound_harness import Sound

from gem_core.training.advantage import advantages
from gem_core.training.sequences import (
    discounted_returns,
    token_sequences,
)
from gem_core.types import Episode

ROOT = Path(__file__).parent.parent.parent
BY_NAME = {case.name: case for case in CASES}
RAGGED, CRASH, MASKED = (
    BY_NAME[n] for n in ("ragged turns", "a crash after non-zero rewards", "a masked middle turn")
)


class Flawed(Sound):
    """A harness whose sequences `spoil` changes."""

    def __init__(
        self,
        spoil: Callable[[list[TrainedSequence]], list[TrainedSequence]],
        carries: frozenset[str] = Sound.carries,
    ) -> None:
        self.spoil, self.carries = spoil, carries

    def _sequences(self, case: Case, part: Sequence[Episode]) -> list[TrainedSequence]:
        return self.spoil(super()._sequences(case, part))


def each(**changes: Any) -> Callable[[list[TrainedSequence]], list[TrainedSequence]]:
    """Change fields of every sequence; a callable receives the sequence."""
    return lambda sequences: [
        replace(r, **{k: v(r) if callable(v) else v for k, v in changes.items()}) for r in sequences
    ]


def first(**changes: Any) -> Callable[[list[TrainedSequence]], list[TrainedSequence]]:
    """Change fields of the first sequence."""
    return lambda sequences: each(**changes)(sequences[:1]) + sequences[1:]


def logprobs_everywhere(sequence: TrainedSequence) -> list[float]:
    return [p if p else -7.0 for p in sequence.logprobs or ()]


def shifted(sequences: list[TrainedSequence]) -> list[TrainedSequence]:
    """Give each sequence the total of the previous one; the sum stays right."""
    return [
        replace(sequence, total=before.total)
        for sequence, before in zip(sequences, [sequences[-1], *sequences])
    ]


def last_reward_only(sequence: TrainedSequence) -> list[float]:
    return [r if i == len(sequence.ids) - 1 else 0.0 for i, r in enumerate(sequence.rewards or ())]


def on_the_first_token(sequence: TrainedSequence) -> list[float]:
    """Put all rewards on the first token, which was not sampled."""
    return [sum(sequence.rewards or ()), *[0.0] * (len(sequence.ids) - 1)]


def test_a_sound_harness_passes_every_golden_case() -> None:
    results = {r.case: r for r in run(Sound())}
    assert {
        name: r
        for name, r in results.items()
        if r.outcome != "ok" and "against the reference" not in name
    } == {}
    assert {c.name for c in CASES} < set(results)
    assert [name for name in results if "against the reference" in name] == [
        f"{c.name} against the reference" for c in GRADIENT_CASES
    ]


FLAWS: list[tuple[str, Callable[[list[TrainedSequence]], list[TrainedSequence]], Case, str]] = [
    ("no logprobs", each(logprobs=None), RAGGED, "sequence 0 has no `logprobs`"),
    (
        "no logprobs in one sequence",
        lambda sequences: [*sequences[:-1], replace(sequences[-1], logprobs=None)],
        RAGGED,
        "sequence 3 has no `logprobs`",
    ),
    (
        "logprobs of unsampled tokens",
        each(logprobs=logprobs_everywhere),
        RAGGED,
        "an unsampled token has the logprob -7.0",
    ),
    (
        "logprobs of a padding sequence",
        first(logprobs=logprobs_everywhere),
        CRASH,
        "a padding sequence has logprobs other than 0.0",
    ),
    (
        "logprobs shifted",
        each(logprobs=lambda s: [*s.logprobs[1:], 0.0]),
        RAGGED,
        "unsampled|not aligned",
    ),
    (
        "NaN logprobs",
        each(logprobs=lambda s: [p and math.nan for p in s.logprobs]),
        RAGGED,
        "not aligned",
    ),
    (
        "wrong logprobs of a masked turn",
        each(logprobs=lambda s: [p and p - 1.0 * (not m) for p, m in zip(s.logprobs, s.mask)]),
        MASKED,
        "not aligned",
    ),
    (
        "neither rewards nor totals",
        each(rewards=None, total=None),
        RAGGED,
        "sequence 0 has no `rewards`",
    ),
    ("no totals", each(total=None), RAGGED, "sequence 0 has no `total`"),
    (
        "wrong totals, one missing",
        lambda sequences: first(total=None)(each(total=lambda s: s.total * 2)(sequences)),
        RAGGED,
        "no `total`",
    ),
    (
        "wrong totals, one NaN",
        lambda sequences: first(total=math.nan)(each(total=lambda s: s.total * 2)(sequences)),
        RAGGED,
        "did not fail",
    ),
    (
        "one NaN total",
        first(total=math.nan),
        RAGGED,
        "the total is nan, but the episode did not fail",
    ),
    ("totals of other sequences", shifted, RAGGED, "but the turns have"),
    (
        "doubled totals with a failed episode",
        each(total=lambda s: s.total * 2),
        CRASH,
        "but the turns have",
    ),
    (
        "no total of an episode with only masked turns",
        lambda sequences: [sequences[0], replace(sequences[1], total=math.nan), sequences[2]],
        MASKED,
        "1 sequences have no total, but 0 episodes failed",
    ),
    (
        "a total of an episode without turns",
        lambda sequences: [*sequences[:1], replace(sequences[1], total=5.0), *sequences[2:]],
        BY_NAME["context full"],
        "the totals of all sequences",
    ),
    (
        "only the last turn's reward",
        each(rewards=last_reward_only),
        RAGGED,
        "trained tokens get a reward of",
    ),
    (
        "only the last turn's reward, with a failed episode",
        each(rewards=last_reward_only),
        CRASH,
        "trained tokens get a reward of",
    ),
    (
        "rewards on unsampled tokens",
        each(rewards=on_the_first_token),
        RAGGED,
        "trained tokens get a reward of",
    ),
    (
        "a NaN reward",
        first(rewards=lambda s: [math.nan, *s.rewards[1:]]),
        RAGGED,
        "a reward is not finite",
    ),
    ("too few rewards", each(rewards=lambda s: s.rewards[1:]), RAGGED, "rewards for"),
]


@pytest.mark.parametrize(
    ("spoil", "case", "message"), [f[1:] for f in FLAWS], ids=[f[0] for f in FLAWS]
)
def test_check_sequences_detects_each_flaw(
    spoil: Callable[[list[TrainedSequence]], list[TrainedSequence]], case: Case, message: str
) -> None:
    wrong = Flawed(spoil)
    with pytest.raises(AssertionError, match=message):
        check_sequences(wrong, case, wrong.train(case))
    (result,) = [r for r in run(wrong, ranks=False, played=False) if r.case == case.name]
    assert result.outcome == "FAILED"


@pytest.mark.parametrize(
    "spoil", [each(logprobs=logprobs_everywhere), first(total=math.nan), each(rewards=None)]
)
def test_check_ranks_detects_each_flaw(
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
def test_only_declared_fields_are_required(carries: set[str], spoil: Any) -> None:
    sound = Flawed(spoil, frozenset(carries))
    for case in (RAGGED, CRASH, MASKED):
        check_sequences(sound, case, sound.train(case))


@pytest.mark.parametrize(
    ("carries", "message"),
    [
        (set(), "add rewards or total to `carries`"),
        ({"logprobs"}, "cannot be checked"),
        ({"total", "values"}, "known are logprobs, rewards, total"),
    ],
)
def test_a_harness_must_declare_what_it_carries(carries: set[str], message: str) -> None:
    silent = Flawed(list, frozenset(carries))
    assert all(message in r.why for r in run(silent, played=False) if "reference" not in r.case)
    with pytest.raises(AssertionError, match=message):
        check_sequences(silent, RAGGED, silent.train(RAGGED))


def test_padding_sequences_may_have_logprobs_if_declared() -> None:
    padded = Flawed(first(logprobs=logprobs_everywhere))
    padded.padding_has_logprobs = True
    check_sequences(padded, CRASH, padded.train(CRASH))
    with pytest.raises(AssertionError, match="an unsampled token has the logprob"):
        check_sequences(padded, RAGGED, padded.train(RAGGED))


def test_every_gradient_case_has_a_committed_gradient() -> None:
    assert len({reference_path(case) for case in GRADIENT_CASES}) == len(GRADIENT_CASES) == 3
    assert all(reference_path(case).is_file() for case in GRADIENT_CASES)


def test_only_the_second_gradient_case_has_untrained_tokens_and_failed_episodes() -> None:
    for case, untrained in zip(GRADIENT_CASES, (False, True, False)):
        sequences = [s for episode in case.episodes for s in token_sequences(episode)]
        sampled = sum(t >= 0 for s in sequences for t in s.turn_of)
        trained = sum(sum(s.mask) for s in sequences)
        assert (sampled > 1.2 * trained) is untrained
        assert any(episode.failed for episode in case.episodes) is untrained


def test_opposite_turns_cancel_in_the_mean_of_their_sequence() -> None:
    (case,) = (case for case in GRADIENT_CASES if "opposite" in case.name)
    per_turn = advantages(case.episodes, case.estimator, gamma=case.gamma)
    for episode, numbers in zip(case.episodes, per_turn):
        (sequence,) = token_sequences(episode)
        assert sum(sequence.broadcast(numbers)) == pytest.approx(0.0, abs=1e-6)
        assert [abs(number) for number in numbers] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("case", [*CASES, *GRADIENT_CASES], ids=lambda case: case.name)
def test_the_core_agrees_with_the_independent_values(case: Case) -> None:
    numbers = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
    for episode, per_turn, expected_episode in zip(case.episodes, numbers, expected_of(case)):
        sequences = token_sequences(episode)
        assert [list(s.ids) for s in sequences] == [s.ids for s in expected_episode.sequences]
        assert [list(s.mask) for s in sequences] == [s.mask for s in expected_episode.sequences]
        assert [list(s.logprobs or ()) for s in sequences] == [
            s.logprobs for s in expected_episode.sequences
        ]
        for sequence, expected in zip(sequences, expected_episode.sequences):
            assert sequence.broadcast(per_turn) == pytest.approx(expected.advantages, abs=1e-9)
        if not episode.failed:
            returns = discounted_returns(episode.rewards, case.gamma)
            assert returns == pytest.approx(list(expected_episode.returns), abs=1e-9)


def test_the_expected_values_are_those_of_the_script_that_shares_no_code_with_adapters() -> None:
    path = ROOT / "scripts" / "conformance_expected.py"
    source = path.read_text(encoding="utf-8")
    assert "gem_core.training" not in source.split('"""', 2)[2]
    spec = importlib.util.spec_from_file_location("conformance_expected", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stored = json.loads(
        (ROOT / "plugins" / "gem_conformance" / "expected.json").read_text(encoding="utf-8")
    )
    for case in (*CASES, *GRADIENT_CASES, ONE_RANK_FAILED):
        assert script.expected(case) == stored[case.name], case.name
    assert len(CASES) >= 30
