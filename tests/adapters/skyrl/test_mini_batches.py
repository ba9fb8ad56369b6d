"""Mini-batches that SkyRL's workers get: the trained sequences only, in SkyRL's loss weighting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gem_conformance import CASES
from gem_conformance.golden import Case
from skyrl.backends.skyrl_train.utils.torch_utils import masked_mean

from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode
from gem_skyrl.conformance import SkyRLHarness

BY_NAME = {case.name: case for case in CASES}
TRAINED, FAILED = (BY_NAME[n].episodes for n in ("ragged turns", "a whole batch failed"))
REDUCTIONS = ("token_mean", "sequence_mean", "prompt_mean", "seq_mean_token_sum_norm")


class Dispatch:
    """Mock of SkyRL's `WorkerDispatch` that keeps the mini-batches and counts optimizer steps."""

    def __init__(self) -> None:
        self.mini_batches: list[Any] = []
        self.steps = 0

    def stage_data(self, model: str, data: Any, boundaries: Any) -> list[Any]:
        self.mini_batches = [data[start:end] for start, end in boundaries]
        return self.mini_batches

    def forward_backward_from_staged(self, model: str, mini_batch: Any) -> Any:
        return SimpleNamespace(metrics={"loss": 0.0})

    def optim_step(self, model: str) -> None:
        self.steps += 1


@pytest.fixture(scope="module")
def harness() -> SkyRLHarness:
    return SkyRLHarness()


@pytest.fixture
def algorithm(harness: SkyRLHarness) -> Iterator[Any]:
    algorithm = harness.trainer.cfg.trainer.algorithm
    algorithm.max_seq_len = 700
    yield algorithm
    algorithm.loss_reduction, algorithm.max_seq_len = "token_mean", None


def dispatched(
    harness: SkyRLHarness,
    episodes: tuple[Episode, ...],
    boundaries: list[tuple[int, int]] | None = None,
    model: str = "policy",
    case: Case = BY_NAME["ragged turns"],
) -> Dispatch:
    """Run SkyRL's training step of the episodes with a mock of its workers."""
    data = harness._batch(replace(case, episodes=episodes))[0]
    if boundaries is not None:
        data.metadata[f"{model}_mini_batch_boundaries"] = boundaries
    trainer, before = harness.trainer, harness.trainer.dispatch
    trainer.dispatch = dispatch = Dispatch()
    try:
        trainer._execute_training_step(model, data)
    finally:
        trainer.dispatch = before
    return dispatch


def weights(mini_batch: Any) -> list[float]:
    """Return the weighted advantages of the trained tokens: SkyRL's loss is their sum."""
    numbers: list[float] = mini_batch["advantages"][mini_batch["loss_mask"].bool()].tolist()
    return numbers


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_failed_episodes_do_not_change_the_loss(
    reduction: str, harness: SkyRLHarness, algorithm: Any
) -> None:
    algorithm.loss_reduction = reduction
    (alone,) = dispatched(harness, TRAINED).mini_batches
    for episodes in (TRAINED + FAILED, FAILED[:1] + TRAINED + FAILED[1:]):
        (mixed,) = dispatched(harness, episodes).mini_batches
        assert weights(mixed) == pytest.approx(weights(alone), rel=1e-6)
        assert any(weights(mixed))


def test_failed_episodes_do_not_change_the_kl_loss(harness: SkyRLHarness) -> None:
    """SkyRL's workers take the mean over the sequences of a mini-batch."""
    losses = []
    for episodes in (TRAINED, TRAINED + FAILED):
        (mini_batch,) = dispatched(harness, episodes).mini_batches
        kl = torch.ones_like(mini_batch["advantages"])
        losses.append(float(masked_mean(kl, mini_batch["loss_mask"], dim=-1).mean()))
    assert losses == [1.0, 1.0]


def test_mini_batch_without_trained_tokens_makes_no_step(harness: SkyRLHarness) -> None:
    episodes = (*TRAINED[:1], *FAILED, *TRAINED[1:])
    dispatch = dispatched(harness, episodes, [(0, 1), (1, 3), (3, 6)])
    assert dispatch.steps == 2
    assert [len(mini_batch) for mini_batch in dispatch.mini_batches] == [1, 3]
    for mini_batch, own in zip(dispatch.mini_batches, (TRAINED[:1], TRAINED[1:])):
        assert int(mini_batch["loss_mask"].sum()) == BatchMetrics.of(own).tokens


def test_critic_makes_no_step_without_trained_turns(harness: SkyRLHarness) -> None:
    case = BY_NAME["gae"]
    values = [*case.arguments["values"][:1], [], [], *case.arguments["values"][1:]]
    case = replace(case, arguments={**case.arguments, "values": values})
    episodes = (*case.episodes[:1], *FAILED, *case.episodes[1:])
    dispatch = dispatched(harness, episodes, [(0, 1), (1, 3), (3, 6)], "critic", case)
    assert dispatch.steps == 2
    turns = [int(mini_batch["loss_mask"].sum()) for mini_batch in dispatch.mini_batches]
    assert turns == [len(episodes[0].turns), sum(len(e.turns) for e in episodes[3:])]


def test_skyrls_metrics_exclude_failed_episodes(harness: SkyRLHarness) -> None:
    metrics = harness.trainer.all_metrics
    metrics.clear()
    data, _, _ = harness._batch(replace(BY_NAME["ragged turns"], episodes=TRAINED + FAILED))
    returns = [e.total_reward for e in TRAINED]
    assert metrics["loss/avg_final_rewards"] == pytest.approx(sum(returns) / len(returns))
    advantages = data["advantages"][data["loss_mask"].bool()]
    assert metrics["loss/avg_raw_advantages"] == pytest.approx(float(advantages.mean()))
    assert metrics["loss/avg_raw_advantages_abs"] == pytest.approx(float(advantages.abs().mean()))
    metrics.clear()
    harness._batch(BY_NAME["a whole batch failed"])
    assert not [name for name in metrics if name.startswith("loss/")]
