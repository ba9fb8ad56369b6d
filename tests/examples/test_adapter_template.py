"""Adapter template: it trains and passes the conformance kit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_conformance import CASES, GRADIENT_CASES, report, run
from project import ROOT
from worlds import ECHO, MOODY, registered

from gem_core.adapter_kit.declaration import probe
from gem_core.errors import BatchMismatchError, ConfigError, EngineError
from gem_core.policies.tiny import tiny_model_path
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

TEMPLATE = str(ROOT / "examples" / "adapter_template")


@pytest.fixture(scope="module", autouse=True)
def template() -> Iterator[None]:
    """Add the template to the path, also for the ranks that the kit starts."""
    sys.path.insert(0, TEMPLATE)
    with registered():
        yield
    sys.path.remove(TEMPLATE)


def settings(**fields: Any) -> Any:
    from toy_trainer import ToySettings

    defaults = {"model": str(tiny_model_path()), "updates": 2, "batch_size": 6, "max_response": 128}
    return ToySettings(**{**defaults, **fields})


def test_conformance_kit_passes(say: Callable[[str], None]) -> None:
    from gem_toy.conformance import harness

    toy = harness()
    results = run(toy)
    say(report(toy, results))
    assert [r for r in results if r.outcome == "FAILED"] == []
    assert {r.case for r in results if r.outcome not in ("ok", "FAILED")} == {
        c.name for c in CASES if "critic_values" in c.needs
    }
    ranks = {
        "two ranks against one",
        "a group over two ranks",
        "a rank with nothing but failed episodes",
    }
    assert ranks | {f"{c.name} against the reference" for c in GRADIENT_CASES} <= {
        r.case for r in results
    }


def test_training_writes_metrics_and_episodes(tmp_path: Path) -> None:
    from gem_toy import GemConfig, train

    out = {"metrics": str(tmp_path / "metrics.jsonl"), "record": str(tmp_path / "episodes.jsonl")}
    config = GemConfig(MOODY, seeds=16, advantage="grpo", max_turn_tokens=6, **out)
    trainer = train(config, settings(samples=2))
    lines, episodes = read_metrics(tmp_path), list(read_episodes(tmp_path / "episodes.jsonl"))
    assert trainer.step == 2
    assert [line["step"] for line in lines] == [0, 1]
    assert [line["episodes"] for line in lines] == [12, 12] and len(episodes) == 24
    failed = sum(12 * line["failed"] for line in lines)
    assert sum(e.failed for e in episodes) == pytest.approx(failed)
    for name in ("grad_norm", "advantage_abs", "tokens"):
        assert all(line[name] > 0 for line in lines)
    versions = {turn.versions for e in episodes[12:] for turn in e.turns if turn.action_ids}
    assert versions == {(1, 1)}


def test_update_makes_turns_with_a_positive_advantage_more_likely() -> None:
    """After one update on a batch, its policy loss is negative."""
    from gem_toy import GemConfig
    from gem_toy.trainer import GemToyTrainer

    trainer = GemToyTrainer(
        GemConfig(ECHO, seeds=16, max_turn_tokens=6),
        settings(updates=1, batch_size=12, learning_rate=1e-4),
    )
    batches: list[Any] = []
    trainer.loss = lambda batch, loss=trainer.loss: batches.append(batch) or loss(batch)  # type: ignore[method-assign]
    trainer.train()
    trainer.rollout.close()
    (batch,) = batches
    with torch.no_grad():
        assert type(trainer).loss(trainer, batch) < -1e-6


def test_batch_of_failed_episodes_does_not_move_the_weights() -> None:
    """Adam's momentum would move them even with a gradient of 0."""
    from gem_toy import GemConfig
    from gem_toy.trainer import GemToyTrainer

    trainer = GemToyTrainer(GemConfig(MOODY, seeds=16, max_turn_tokens=6), settings(updates=3))
    weights = []

    def record(metrics: dict[str, float]) -> None:
        weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        trainer.prompts = [{"seed": 1}] if trainer.step == 0 else [{"seed": 2}]  # odd ones fail

    trainer.log = record  # type: ignore[method-assign]
    trainer.prompts = [{"seed": seed} for seed in (2, 4, 6, 8)]
    trainer.train()
    trainer.rollout.close()

    def moved(a: list[Any], b: list[Any]) -> bool:
        return not all(torch.equal(x, y) for x, y in zip(a, b))

    assert not moved(weights[0], weights[1]) and moved(weights[1], weights[2])


def test_train_reports_all_rejected_settings_at_once() -> None:
    from gem_toy import GemConfig, train

    config = GemConfig(ECHO, seeds=16, advantage="grpo", max_turn_tokens=500)
    with pytest.raises(ConfigError, match="3 settings are rejected") as rejected:
        train(config, settings(sequence_level=True))
    for setting in ("sequence_level", "samples", "max_turn_tokens"):
        assert setting in str(rejected.value)
    with pytest.raises(ConfigError, match="a prompt must have a seed"):
        config.task_of("guess")


@pytest.mark.parametrize("name", ["ids", "mask"])
def test_check_batch_raises_if_a_tensor_changed(name: str) -> None:
    from gem_toy import GemConfig
    from gem_toy.trainer import GemToyTrainer, check_batch

    trainer = GemToyTrainer(GemConfig(ECHO, seeds=16, max_turn_tokens=6), settings())
    samples = trainer.rollout(trainer.prompts[:3], trainer)
    trainer.compute_advantages(samples)
    batch = trainer.collate(samples)
    with pytest.raises(BatchMismatchError, match="not what was played"):
        check_batch({**batch, name: batch[name].roll(1, dims=1)}, samples)


def test_engine_error_ends_the_run() -> None:
    from gem_toy import GemConfig
    from gem_toy.trainer import GemToyTrainer

    trainer = GemToyTrainer(GemConfig(ECHO, seeds=16, max_turn_tokens=6), settings())

    def fail(*_: Any) -> Any:
        raise EngineError("out of memory")

    trainer.engine.generate = fail  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="out of memory"):
        trainer.train()


def test_probe_reads_the_declaration_without_a_distribution() -> None:
    from gem_toy import ADAPTER

    status = probe(ADAPTER)
    assert status.installed == "unknown"  # importable, but not a distribution
