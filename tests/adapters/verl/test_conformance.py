"""The conformance table of verl, its default trainer and its legacy one: every golden case holds, or is refused as stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gem_core.adapter_kit.conformance import CASES, GRADIENT_CASES, Case, TrainedRow, report, run
from gem_core.adapter_kit.conformance.kit import check_rows
from gem_core.types import TurnStatus
from gem_verl.conformance import LegacyHarness, VerlHarness

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def harness() -> VerlHarness:
    return VerlHarness()


@pytest.fixture(scope="module")
def legacy() -> LegacyHarness:
    return LegacyHarness()


def test_the_table_holds(harness: VerlHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    assert {r.case for r in results if r.outcome == "refused"} == {"gae"}
    ranks = {"two ranks against one", "a group over two ranks", "a rank with nothing but failed episodes"}
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {r.case for r in results}


def test_the_table_of_the_legacy_trainer_holds(legacy: LegacyHarness, say: Callable[[str], None]) -> None:
    results = run(legacy, ranks=False)
    say(report(legacy, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    beyond = {c.name for c in CASES if c.needs & {"several_rows", "critic_values"}}
    assert {r.case for r in results if r.outcome == "refused"} == beyond


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_groups_compare_whole_episodes_whatever_their_rows(harness: VerlHarness, estimator: str) -> None:
    """Three rows of two episodes are two members of a group, not three."""
    several = BY_NAME["rewritten history"].episodes[0]
    single = replace(BY_NAME["one turn"].episodes[0], seed=several.seed)
    case = Case("a group with several rows", (several, single), estimator, 1.0)
    check_rows(harness, case, harness.train(case))


@pytest.mark.parametrize("path", ["harness", "legacy"])
def test_a_group_counts_what_masked_first_turns_earned(path: str, request: pytest.FixtureRequest) -> None:
    plain = BY_NAME["ragged turns"].episodes[0]
    masked = replace(plain, turns=(replace(plain.turns[0], status=TurnStatus.MASKED, reward=-0.5), *plain.turns[1:]))
    case = Case("a masked first turn", (masked, replace(BY_NAME["one turn"].episodes[0], seed=plain.seed)), "grpo", 0.9)
    played = request.getfixturevalue(path)
    check_rows(played, case, played.train(case))


class Forgetful(VerlHarness):
    """An adapter with one flaw, which the kit has to see."""

    def __init__(self, whole: VerlHarness, flaw: str) -> None:
        super().__init__()
        self.__dict__ |= {"trainer": whole.trainer, "config": whole.config, "_inside": whole._inside}
        self.flaw = flaw

    def _replayed(self, case: Case, *args: Any) -> list[tuple[int, TrainedRow]]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        return [(place, self._spoil(row)) for place, row in super()._replayed(case, *args)]

    def _spoil(self, row: TrainedRow) -> TrainedRow:
        if self.flaw == "mask":
            return replace(row, mask=[1] * len(row.mask))
        if self.flaw == "ids":
            return replace(row, ids=[*row.ids[1:], row.ids[0]])
        if self.flaw == "advantage":
            return replace(row, advantages=[a * (1 + 1e-4) for a in row.advantages])
        if self.flaw == "logprobs":
            return replace(row, logprobs=[p if m else -7.0 for p, m in zip(row.logprobs or (), row.mask)])
        if self.flaw == "rewards":
            return replace(row, rewards=[sum(row.rewards or ()), *[0.0] * (len(row.ids) - 1)])
        return row


@pytest.mark.parametrize("flaw", ["discount", "mask", "ids", "advantage", "logprobs", "rewards"])
def test_the_kit_sees_a_flaw(harness: VerlHarness, flaw: str) -> None:
    ragged, wrong = BY_NAME["ragged turns"], Forgetful(harness, flaw)
    with pytest.raises(AssertionError):
        check_rows(wrong, ragged, wrong.train(ragged))
