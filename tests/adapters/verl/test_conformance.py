"""The conformance table of verl's default trainer: every case passes or is declared unsupported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gem_conformance import (
    CASES,
    GRADIENT_CASES,
    Case,
    TrainedSequence,
    kit,
    report,
    run,
)
from gem_conformance.kit import check_gradient, check_sequences

from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_sequences
from gem_core.types import TurnStatus
from gem_verl.conformance import VerlHarness

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def harness(cluster: None) -> VerlHarness:
    return VerlHarness()


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare advantages within 1e-6, without the kit's tolerance for float32 rewards."""
    monkeypatch.setattr(kit, "_tolerance", lambda case: 1e-6)


@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(
    harness: VerlHarness, exact: None, say: Callable[[str], None]
) -> None:
    results = run(harness)
    say(report(harness, results))
    assert {r.outcome for r in results} == {"ok"}
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {
        r.case for r in results
    }


@pytest.mark.setting("GSPO", "works")
def test_gspo_keeps_the_advantage_of_each_turn(harness: VerlHarness) -> None:
    """verl's gspo is the token form: a sequence-level ratio would give a gradient of 0."""
    gspo = VerlHarness(settings=["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"])
    gspo.__dict__ |= {"trainer": harness.trainer, "_inline_manager": harness._inline_manager}
    check_gradient(gspo, GRADIENT_CASES[2])


@pytest.mark.filterwarnings("ignore")  # of a CPU without bfloat16
def test_gradients_agree_in_bfloat16(harness: VerlHarness) -> None:
    rounded = VerlHarness()
    rounded.__dict__ |= {"trainer": harness.trainer, "_inline_manager": harness._inline_manager}
    rounded.bfloat16 = True
    for case in GRADIENT_CASES:
        check_gradient(rounded, case)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_groups_compare_episodes_not_sequences(
    harness: VerlHarness, exact: None, estimator: str
) -> None:
    """Two episodes with three sequences are two members of a group."""
    several = BY_NAME["rewritten history"].episodes[0]
    single = replace(BY_NAME["one turn"].episodes[0], env_id=several.env_id, seed=several.seed)
    case = Case("a group with several sequences", (several, single), estimator, 1.0)
    check_by_core(harness, case)


def test_group_advantage_includes_rewards_of_masked_first_turns(
    harness: VerlHarness, exact: None
) -> None:
    check_by_core(harness, masked_first_turn())


def test_per_env_normalises_within_each_environment(harness: VerlHarness, exact: None) -> None:
    """`per_env` reads the mixture component of each episode."""
    episodes = tuple(
        replace(e, component=f"golden:{i % 2}")
        for i, e in enumerate(BY_NAME["ragged turns"].episodes)
    )
    case = Case("per_env", episodes, "reinforce++", 0.9, arguments={"per_env": True})
    check_by_core(harness, case)


@pytest.mark.parametrize(
    "name",
    ["ragged turns", "a masked middle turn", "rewritten history", "groups, grpo", "large rewards"],
)
def test_verls_own_trainer_rebuilds_turns_from_token_rewards(name: str, stock: VerlHarness) -> None:
    """With trainer_mode=sync, gem's estimators get only float32 token rewards and a mask."""
    check_sequences(stock, BY_NAME[name], stock.train(BY_NAME[name]))


@pytest.fixture(scope="module")
def stock(harness: VerlHarness) -> VerlHarness:
    assert harness.trainer  # starts the queue that both harnesses use
    return VerlHarness(settings=["trainer.v1.trainer_mode=sync"])


def check_by_core(harness: VerlHarness, case: Case) -> None:
    """Compare a case without stored figures with the core's own advantages."""
    per_turn = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
    expected = [
        (list(sequence.ids), sequence.broadcast(numbers))
        for episode, numbers in zip(case.episodes, per_turn)
        for sequence in token_sequences(episode)
        if sequence.trained
    ]
    trained = [s for s in harness.train(case) if any(s.mask)]
    assert [list(s.ids) for s in trained] == [ids for ids, _ in expected]
    for sequence, (_, numbers) in zip(trained, expected):
        assert list(sequence.advantages) == pytest.approx(numbers, abs=1e-5)


def masked_first_turn() -> Case:
    plain = BY_NAME["ragged turns"].episodes[0]
    masked = replace(
        plain,
        turns=(replace(plain.turns[0], status=TurnStatus.MASKED, reward=-0.5), *plain.turns[1:]),
    )
    return Case(
        "a masked first turn",
        (masked, replace(BY_NAME["one turn"].episodes[0], seed=plain.seed)),
        "grpo",
        0.9,
    )


class Flawed(VerlHarness):
    """An adapter with one flaw, which the kit must detect."""

    def __init__(self, sound: VerlHarness, flaw: str) -> None:
        super().__init__()
        self.__dict__ |= {
            "trainer": sound.trainer,
            "settings": sound.settings,
            "_inline_manager": sound._inline_manager,
        }
        self.flaw = flaw

    def _replay(self, case: Case, *args: Any) -> list[tuple[int, TrainedSequence]]:
        if self.flaw == "discount":
            case = replace(case, gamma=case.gamma * 0.5)
        return [
            (index, self._changed(sequence)) for index, sequence in super()._replay(case, *args)
        ]

    def _changed(self, sequence: TrainedSequence) -> TrainedSequence:
        if self.flaw == "mask":
            return replace(sequence, mask=[1] * len(sequence.mask))
        if self.flaw == "ids":
            return replace(sequence, ids=[*sequence.ids[1:], sequence.ids[0]])
        if self.flaw == "advantage":
            return replace(sequence, advantages=[a * (1 + 1e-4) for a in sequence.advantages])
        if self.flaw == "logprobs":
            return replace(
                sequence,
                logprobs=[p if m else -7.0 for p, m in zip(sequence.logprobs or (), sequence.mask)],
            )
        if self.flaw == "rewards":
            return replace(
                sequence, rewards=[sum(sequence.rewards or ()), *[0.0] * (len(sequence.ids) - 1)]
            )
        return sequence


@pytest.mark.parametrize("flaw", ["discount", "mask", "ids", "advantage", "logprobs", "rewards"])
def test_conformance_detects_a_flaw(harness: VerlHarness, flaw: str) -> None:
    ragged, flawed = BY_NAME["ragged turns"], Flawed(harness, flaw)
    with pytest.raises(AssertionError):
        check_sequences(flawed, ragged, flawed.train(ragged))
