"""The conformance table of SkyRL's trainer: every case passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gem_conformance import CASES, GRADIENT_CASES, report, run
from gem_conformance.golden import Case
from gem_conformance.kit import check_gradient, check_sequences
from skyrl.train.trainer import RayPPOTrainer

from gem_core.adapter_kit.played import PlayedBatch
from gem_core.errors import BatchMismatchError
from gem_skyrl import trainer
from gem_skyrl.conformance import SkyRLHarness
from gem_skyrl.trainer import check_batch

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def harness() -> SkyRLHarness:
    return SkyRLHarness()


@pytest.mark.setting("Rewritten history", "works")
@pytest.mark.setting("Failed episodes", "works")
@pytest.mark.setting("Token-level ratios", "works")
def test_conformance_table_passes(harness: SkyRLHarness, say: Callable[[str], None]) -> None:
    results = run(harness)
    say(report(harness, results))
    assert {r.outcome for r in results} == {"ok"}
    assert {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {r.case for r in results}


def test_gradients_agree_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SkyRLHarness()
    harness.bfloat16 = True
    for case in GRADIENT_CASES:
        check_gradient(harness, case)
    monkeypatch.setattr(trainer, "put_advantages", put_shifted)
    with pytest.raises(AssertionError, match="in bfloat16 the gradient has the cosine"):
        check_gradient(harness, GRADIENT_CASES[0])


@pytest.mark.setting("Packing", "works")
@pytest.mark.parametrize("case", GRADIENT_CASES, ids=lambda case: case.name)
def test_packed_sequences_have_the_same_gradient(case: Case, harness: SkyRLHarness) -> None:
    """With `remove_microbatch_padding`, SkyRL trains all sequences as one row of tokens."""
    packed = SkyRLHarness()
    packed.packed = True
    padded, row = harness.gradient(case), packed.gradient(case)
    assert set(row) == set(padded)
    size = sum(float((g**2).sum()) for g in padded.values()) ** 0.5
    difference = sum(float(((row[name] - g) ** 2).sum()) for name, g in padded.items()) ** 0.5
    assert size > 0 and difference < 1e-5 * size
    check_gradient(packed, case)


def put_scaled(data: Any, played: PlayedBatch, **numbers: Any) -> None:
    trainer_put(
        data, played, **{k: [[n * (1 + 1e-4) for n in v] for v in w] for k, w in numbers.items()}
    )


def put_shifted(data: Any, played: PlayedBatch, **numbers: Any) -> None:
    trainer_put(data, played, **numbers)
    data["advantages"] = torch.roll(data["advantages"], 1, dims=1)


trainer_put = trainer.put_advantages


@pytest.mark.parametrize("flaw", [put_scaled, put_shifted])
def test_conformance_detects_wrong_advantages(
    harness: SkyRLHarness, flaw: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "put_advantages", flaw)
    ragged = BY_NAME["ragged turns"]
    with pytest.raises(AssertionError):
        check_sequences(harness, ragged, harness.train(ragged))


def test_gspo_would_lose_the_advantages_of_turns(harness: SkyRLHarness) -> None:
    """`check_settings` rejects gspo: its ratio is one number per sequence."""
    from skyrl.backends.skyrl_train.utils import ppo_utils

    case = next(c for c in GRADIENT_CASES if "opposite" in c.name)
    algorithm = harness.trainer.cfg.trainer.algorithm
    check_gradient(harness, case)
    data = harness._batch(case)[0]
    logprobs = torch.zeros_like(data["advantages"], requires_grad=True)
    for name, lost in (("regular", False), ("gspo", True)):
        algorithm.policy_loss_type = name
        loss, _ = ppo_utils.PolicyLossRegistry.get(name)(
            logprobs, logprobs.detach(), data["advantages"], algorithm, data["loss_mask"]
        )
        (gradient,) = torch.autograd.grad(loss, logprobs)
        sums = gradient.sum(dim=1) if lost else gradient.abs().sum(dim=1)
        assert bool((sums.abs() < 1e-6).any()) == lost
    algorithm.policy_loss_type = "regular"


def test_batch_that_differs_from_its_episodes_is_rejected(harness: SkyRLHarness) -> None:
    ragged = BY_NAME["ragged turns"]
    data, played, _ = harness._batch(replace(ragged, episodes=ragged.episodes[:3]))
    assert len(data["sequences"]) > len(played.sequences), "SkyRL pads the batch"
    check_batch(data, played)
    for name, row, column in (("sequences", 0, -1), ("loss_mask", 0, -1), ("loss_mask", -1, -1)):
        before = data[name].clone()
        data[name][row, column] = 1 - before[row, column]
        with pytest.raises(BatchMismatchError, match="is not what was played"):
            check_batch(data, played)
        data[name] = before


@pytest.mark.setting("Critic", "works")
def test_critic_trains_the_start_of_each_turn(
    harness: SkyRLHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_NAME["gae, truncated"]
    data, played, _ = harness._batch(case)
    trained: dict[str, torch.Tensor] = {}

    def train(self: Any, model: str, data: Any) -> None:
        trained[model] = data["loss_mask"]

    monkeypatch.setattr(RayPPOTrainer, "_execute_training_step", train)
    for model in ("critic", "policy"):
        harness.trainer._execute_training_step(model, data)
    turns = sum(len(sequence.trained) for sequence in played.sequences)
    assert int(trained["critic"].sum()) == turns
    tokens = sum(sum(sequence.mask) for sequence in played.sequences)
    assert int(trained["policy"].sum()) == tokens > turns, "the critic's mask is its own"


def test_values_of_equal_episodes_are_their_own(harness: SkyRLHarness) -> None:
    """Two episodes may be equal: they are told apart by identity."""
    episode = BY_NAME["ragged turns"].episodes[0]
    twice = (episode, replace(episode))
    _, played, _ = harness._batch(replace(BY_NAME["ragged turns"], episodes=twice))
    assert len(played.episodes) == 2
