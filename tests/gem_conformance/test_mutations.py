"""Mutation check: the kit alone catches faults that an adapter can cause."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from gem_conformance import CASES, Case, TrainedSequence
from gem_conformance.kit import check_play, check_ranks, check_sequences
from gem_conformance.played import PLAYED_CASES, PlayedCase
from sound_harness import Sound

from gem_core.training.advantage import advantages
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode, FinishReason, Generation, Sampling, TurnStatus

Sequences = list[TrainedSequence]
Numbers = list[list[float]]


class Mutant(Sound):
    """A harness with one fault: in its advantages, in its sequences, or in its rollout."""

    def __init__(
        self,
        numbers: Callable[[Case, Sequence[Episode]], Numbers] | None = None,
        spoil: Callable[[Sequences], Sequences] = list,
        part_only: bool = False,
    ) -> None:
        self._numbers, self._spoil, self._part_only = numbers, spoil, part_only

    def numbers(self, case: Case, episodes: Sequence[Episode]) -> Numbers:
        compute = self._numbers or super().numbers
        return compute(case, episodes)

    def _sequences(self, case: Case, part: Sequence[Episode]) -> Sequences:
        seen = replace(case, episodes=tuple(part)) if self._part_only else case
        return self._spoil(super()._sequences(seen, part))


def every(change: Callable[[TrainedSequence], TrainedSequence]) -> Callable[[Sequences], Sequences]:
    return lambda sequences: [change(sequence) for sequence in sequences]


def runs(sequence: TrainedSequence) -> list[tuple[int, int]]:
    """Return (start, end) of each trained turn."""
    edges = [0, *sequence.mask, 0]
    starts = [i for i in range(len(sequence.mask)) if edges[i + 1] and not edges[i]]
    ends = [i + 1 for i in range(len(sequence.mask)) if edges[i + 1] and not edges[i + 2]]
    return list(zip(starts, ends))


def shift_mask(s: TrainedSequence) -> TrainedSequence:
    return replace(s, mask=[0, *s.mask[:-1]])


def train_observations(s: TrainedSequence) -> TrainedSequence:
    first = next((i for i, m in enumerate(s.mask) if m), len(s.mask))
    return replace(s, mask=[*s.mask[:first], *[1] * (len(s.mask) - first)])


def drop_end_tokens(s: TrainedSequence) -> TrainedSequence:
    ends = {end - 1 for _, end in runs(s)}
    return replace(s, mask=[0 if i in ends else m for i, m in enumerate(s.mask)])


def train_sampled(s: TrainedSequence) -> TrainedSequence:
    return replace(s, mask=[int(p != 0.0) for p in s.logprobs or ()])


def drop_last_token(s: TrainedSequence) -> TrainedSequence:
    cut = {k: getattr(s, k)[:-1] for k in ("ids", "mask", "advantages", "logprobs", "rewards")}
    return replace(s, **cut)


def change_prompt(s: TrainedSequence) -> TrainedSequence:
    return replace(s, ids=[s.ids[0] + 1, *s.ids[1:]])


def mean_of_sequence(s: TrainedSequence) -> TrainedSequence:
    trained = [a for a, m in zip(s.advantages, s.mask) if m]
    mean = sum(trained) / len(trained) if trained else 0.0
    return replace(s, advantages=[mean * m for m in s.mask])


def next_turn(s: TrainedSequence) -> TrainedSequence:
    numbers, spans = list(s.advantages), runs(s)
    for (start, end), (following, _) in pairwise(spans):
        numbers[start:end] = [s.advantages[following]] * (end - start)
    return replace(s, advantages=numbers)


def last_token_only(s: TrainedSequence) -> TrainedSequence:
    ends = {end - 1 for _, end in runs(s)}
    return replace(s, advantages=[a if i in ends else 0.0 for i, a in enumerate(s.advantages)])


def rewards_one_early(s: TrainedSequence) -> TrainedSequence:
    return replace(s, rewards=[*(s.rewards or ())[1:], 0.0])


def no_last_reward(s: TrainedSequence) -> TrainedSequence:
    spans = runs(s)
    rewards = list(s.rewards or ())
    if spans:
        rewards[spans[-1][1] - 1] = 0.0
    return replace(s, rewards=rewards)


def first_rows_logprobs(sequences: Sequences) -> Sequences:
    row = [p for p in sequences[0].logprobs or () if p] or [-1.0]
    changed = []
    for s in sequences:
        given = iter(row * 99)
        changed.append(replace(s, logprobs=[next(given) if p else p for p in s.logprobs or ()]))
    return changed


def _stats(case: Case, pool: Sequence[float], numbers: Numbers, std: Any) -> Numbers:
    mean, deviation = statistics.fmean(pool), std(pool) if len(pool) > 1 else 0.0
    return [[(x - mean) / (deviation + 1e-8) for x in row] for row in numbers]


def _returns(case: Case, episodes: Sequence[Episode], gamma: float | None = None) -> Numbers:
    gamma = case.gamma if gamma is None else gamma
    return [
        [0.0] * len(e.turns) if e.failed else discounted_returns(e.rewards, gamma) for e in episodes
    ]


def _untrained_as_zero(episodes: Sequence[Episode], numbers: Numbers) -> Numbers:
    return [
        [a if e.trained(t) else 0.0 for t, a in enumerate(row)] for e, row in zip(episodes, numbers)
    ]


def _rebn(
    pool_of: Callable[[Episode, list[float]], list[float]], std: Any = statistics.pstdev
) -> Any:
    """Return ReBN with statistics over another pool of numbers; other estimators are unchanged."""

    def numbers(case: Case, episodes: Sequence[Episode]) -> Numbers:
        if case.estimator != "rebn":
            return _sound(case, episodes)
        returns = _returns(case, episodes)
        pool = [x for e, row in zip(episodes, returns) for x in pool_of(e, row)] or [0.0]
        return _untrained_as_zero(episodes, _stats(case, pool, returns, std))

    return numbers


def _valid(e: Episode, row: list[float]) -> list[float]:
    return [x for t, x in enumerate(row) if e.trained(t)]


def _sound(case: Case, episodes: Sequence[Episode], **changes: Any) -> Numbers:
    arguments = {"gamma": case.gamma, **case.arguments, **changes}
    return advantages(episodes, case.estimator, **arguments)


def _edited(edit: Callable[[Episode], Episode]) -> Any:
    """Return the sound advantages of edited episodes."""
    return lambda case, episodes: _sound(case, [edit(episode) for episode in episodes])


def _without(name: str) -> Any:
    def numbers(case: Case, episodes: Sequence[Episode]) -> Numbers:
        kept = {k: v for k, v in case.arguments.items() if k != name}
        return advantages(episodes, case.estimator, gamma=case.gamma, **kept)

    return numbers


def _rewards(edit: Callable[[list[float]], list[float]]) -> Any:
    """Return the advantages of episodes with other rewards."""

    def change(episode: Episode) -> Episode:
        if episode.failed:
            return episode
        rewards = edit(list(episode.rewards))
        turns = tuple(replace(t, reward=r) for t, r in zip(episode.turns, rewards))
        return replace(episode, turns=turns)

    return _edited(change)


def _values(edit: Callable[[Sequence[float]], Sequence[float]]) -> Any:
    def numbers(case: Case, episodes: Sequence[Episode]) -> Numbers:
        if "values" not in case.arguments:
            return _sound(case, episodes)
        return _sound(case, episodes, values=[edit(v) for v in case.arguments["values"]])

    return numbers


def _rloo_with_self(case: Case, episodes: Sequence[Episode]) -> Numbers:
    if case.estimator != "rloo":
        return _sound(case, episodes)
    return advantages(episodes, "grpo", gamma=case.gamma, scale=False)


def _by_turns(case: Case, episodes: Sequence[Episode]) -> Numbers:
    estimator = "rebn" if case.estimator == "reinforce++" else case.estimator
    return advantages(episodes, estimator, gamma=case.gamma, **case.arguments)


def _as_terminated(case: Case, episodes: Sequence[Episode]) -> Numbers:
    from gem_core.types import StopReason

    ended = [e if e.failed else replace(e, stop=StopReason.TERMINATED) for e in episodes]
    return _sound(case, ended)


def _valid_again(e: Episode) -> Episode:
    if e.failed:
        return e
    return replace(e, turns=tuple(replace(t, status=TurnStatus.VALID) for t in e.turns))


def _in_pairs(case: Case, episodes: Sequence[Episode]) -> Numbers:
    """Form groups of adjacent episodes, whatever their seeds."""
    return _sound(case, [replace(e, seed=i // 2) for i, e in enumerate(episodes)])


def _trains_failed(sequences: Sequences) -> Sequences:
    return [s if any(s.mask) else replace(s, mask=[0] * (len(s.ids) - 1) + [1]) for s in sequences]


DATA_FAULTS: dict[str, Mutant] = {
    "mask shifted": Mutant(spoil=every(shift_mask)),
    "observations trained": Mutant(spoil=every(train_observations)),
    "end tokens not trained": Mutant(spoil=every(drop_end_tokens)),
    "masked turns trained": Mutant(spoil=every(train_sampled)),
    "failed episodes trained": Mutant(spoil=_trains_failed),
    "last token lost": Mutant(spoil=every(drop_last_token)),
    "prompt ids changed": Mutant(spoil=every(change_prompt)),
    "mean advantage of a sequence": Mutant(spoil=every(mean_of_sequence)),
    "advantage of the next turn": Mutant(spoil=every(next_turn)),
    "advantage on the last token only": Mutant(spoil=every(last_token_only)),
    "sign flipped": Mutant(
        spoil=every(lambda s: replace(s, advantages=[-a for a in s.advantages]))
    ),
    "discount forgotten": Mutant(lambda c, e: _sound(c, e, gamma=1.0)),
    "discount applied twice": Mutant(lambda c, e: _sound(c, e, gamma=c.gamma**2)),
    "sample deviation": Mutant(_rebn(_valid, statistics.stdev)),
    "statistics over masked turns": Mutant(_rebn(lambda e, row: [] if e.failed else row)),
    "statistics over failed episodes": Mutant(
        _rebn(lambda e, row: row if e.failed else _valid(e, row))
    ),
    "statistics over episodes": Mutant(_rebn(lambda e, row: _valid(e, row)[:1])),
    "statistics per environment forgotten": Mutant(_without("per_env")),
    "statistics over turns for reinforce++": Mutant(_by_turns),
    "last reward dropped": Mutant(_rewards(lambda r: [*r[:-1], 0.0])),
    "only the last reward": Mutant(_rewards(lambda r: [*[0.0] * (len(r) - 1), *r[-1:]])),
    "rewards of the next turn": Mutant(_rewards(lambda r: [*r[1:], 0.0])),
    "rewards reversed": Mutant(_rewards(lambda r: r[::-1])),
    "token rewards one early": Mutant(spoil=every(rewards_one_early)),
    "token reward of the last turn lost": Mutant(spoil=every(no_last_reward)),
    "all episodes in one group": Mutant(_edited(lambda e: replace(e, seed=0, options={}))),
    "groups ignore options": Mutant(_edited(lambda e: replace(e, options={}))),
    "groups by position": Mutant(_in_pairs),
    "rloo with the episode itself": Mutant(_rloo_with_self),
    "grpo always scaled": Mutant(_without("scale")),
    "no bootstrap after truncation": Mutant(_as_terminated),
    "values shifted by a turn": Mutant(_values(lambda v: [*v[1:], v[0]])),
    "values forgotten": Mutant(_values(lambda v: [0.0] * len(v))),
    "lambda forgotten": Mutant(_without("lam")),
    "masked turns in the statistics of gae": Mutant(_edited(_valid_again)),
    "logprobs shifted": Mutant(
        spoil=every(lambda s: replace(s, logprobs=[0.0, *(s.logprobs or ())[:-1]]))
    ),
    "logprobs of the first sequence": Mutant(spoil=first_rows_logprobs),
    "logprobs lost": Mutant(spoil=every(lambda s: replace(s, logprobs=[0.0] * len(s.ids)))),
    "episodes reversed": Mutant(spoil=lambda sequences: sequences[::-1]),
    "two episodes swapped": Mutant(spoil=lambda s: [*s[1:2], *s[:1], *s[2:]]),
    "an episode lost": Mutant(spoil=lambda sequences: sequences[:-1]),
    "a later sequence lost": Mutant(
        spoil=lambda s: [x for i, x in enumerate(s) if i == 0 or x.total != s[i - 1].total]
    ),
    "totals doubled": Mutant(spoil=every(lambda s: replace(s, total=2 * (s.total or 0.0)))),
    "statistics per rank": Mutant(part_only=True),
}


@pytest.mark.parametrize("name", DATA_FAULTS)
def test_a_fault_in_the_data_is_caught(name: str) -> None:
    harness = DATA_FAULTS[name]
    caught = []
    for case in CASES:
        try:
            check_sequences(harness, case, harness.train(case))
        except Exception as error:  # noqa: BLE001 - any error is a failed check of the kit
            caught.append(f"{case.name}: {error}")
    if not caught:
        with pytest.raises(AssertionError):
            check_ranks(harness, CASES[0])


class Reversed(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        return super().generate(prompts, sampling)[::-1]


class FirstLogprobs(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        given = super().generate(prompts, sampling)
        row = (given[0].logprobs or ()) * 20
        return [replace(g, logprobs=row[: len(g.ids)]) for g in given]


class FinishedAsCut(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        given = super().generate(prompts, sampling)
        return [replace(g, finish=FinishReason.LENGTH) for g in given]


class CutAsFinished(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        given = super().generate(prompts, sampling)
        return [replace(g, finish=FinishReason.STOP) for g in given]


class EndTokenDropped(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        given = super().generate(prompts, sampling)
        return [
            replace(g, ids=g.ids[:-1], logprobs=(g.logprobs or ())[:-1])
            if g.ids[-1] == self.end_id and len(g.ids) > 1
            else g
            for g in given
        ]


class CapIgnored(Sound):
    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        return super().generate(prompts, replace(sampling, max_tokens=16))


class _Played(Sound):
    """A harness that plays another batch than the one it was given."""

    def other(self, case: PlayedCase) -> PlayedCase:
        return case

    def play(self, case: PlayedCase) -> list[Episode]:
        return super().play(self.other(case))


class ContextForgotten(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, fields={k: v for k, v in case.fields.items() if k != "max_context"})


class HorizonRestarted(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, update=0)


class HorizonForgotten(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, fields={k: v for k, v in case.fields.items() if k != "horizon"})


class OnCutForgotten(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, fields={k: v for k, v in case.fields.items() if k != "on_cut"})


class SeedsReversed(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, seeds=case.seeds[::-1])


class SeedsCounted(_Played):
    def other(self, case: PlayedCase) -> PlayedCase:
        return replace(case, seeds=tuple(range(len(case.seeds))))


class SlowDropped(Sound):
    def play(self, case: PlayedCase) -> list[Episode]:
        return [e for e in super().play(case) if e.seconds < 0.2]


class FailedDropped(Sound):
    def play(self, case: PlayedCase) -> list[Episode]:
        return [e for e in super().play(case) if not e.failed]


class AsTheyFinish(Sound):
    def play(self, case: PlayedCase) -> list[Episode]:
        return sorted(super().play(case), key=lambda e: len(e.turns))


PLAY_FAULTS = (
    Reversed,
    FirstLogprobs,
    FinishedAsCut,
    CutAsFinished,
    EndTokenDropped,
    CapIgnored,
    ContextForgotten,
    HorizonRestarted,
    HorizonForgotten,
    OnCutForgotten,
    SeedsReversed,
    SeedsCounted,
    SlowDropped,
    FailedDropped,
    AsTheyFinish,
)


@pytest.mark.parametrize("fault", PLAY_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_rollout_is_caught(fault: type[Sound]) -> None:
    caught = []
    for case in PLAYED_CASES:
        try:
            check_play(fault(), case)
        except AssertionError as error:
            caught.append(str(error))
    assert caught
