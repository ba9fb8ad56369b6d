"""verl's legacy trainer (V0): the conformance table, and token rewards through its workers.

Delete this file together with `gem_verl.legacy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from client import Client, columns_of
from gem_conformance import CASES, Case, TrainedSequence, report, run
from omegaconf import open_dict
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
from worlds import ECHO

from gem_core.errors import ConfigError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_sequences
from gem_core.types import StopReason, TurnStatus
from gem_verl import ADAPTER, GemConfig
from gem_verl.config import check_settings, read_config
from gem_verl.conformance import (
    FIELDS,
    VerlHarness,
    golden_columns,
    objects,
    set_algorithm,
    trained_sequence,
)
from gem_verl.legacy import GemAgentLoopWorker


class LegacyHarness(VerlHarness):
    """Harness for verl's legacy trainer, which takes one sequence per episode."""

    adapter = replace(
        ADAPTER,
        capabilities=replace(ADAPTER.capabilities, several_sequences=False, critic_values=False),
    )

    def __init__(
        self, config: GemConfig | None = None, client: Any = None, settings: Sequence[str] = ()
    ) -> None:
        super().__init__(config, client, ["trainer.use_v1=False", *settings])

    def train(self, case: Case) -> list[TrainedSequence]:
        set_algorithm(self.settings, case.estimator, case.gamma)
        with open_dict(self.settings):
            self.settings.algorithm.gem = {k: v for k, v in case.arguments.items() if k != "values"}
        check_settings(self.settings, read_config(self.settings))
        columns = golden_columns(case, case.episodes, [[i] for i in range(len(case.episodes))])
        played = self.generate(
            {**columns, "uid": [str(episode.group) for episode in case.episodes]}, 1
        )
        played.batch["token_level_rewards"] = played.batch["rm_scores"]
        algorithm = self.settings.algorithm
        data = compute_advantage(
            played, adv_estimator=algorithm.adv_estimator, gamma=algorithm.gamma, config=algorithm
        )
        width = data.batch["prompts"].shape[1]
        sequences = []
        for i in range(len(case.episodes)):
            attended = data.batch["attention_mask"][i].bool()
            fields = {name: data.batch[name][i][attended[width:]] for name in FIELDS[1:]}
            fields["prompts"] = data.batch["prompts"][i][attended[:width]]
            sequences.append(trained_sequence(fields))
        return sequences

    def generate(self, columns: dict[str, list[Any]], step: int, worker: Any = None) -> Any:
        arrays = {name: objects(column) for name, column in columns.items()}
        batch = DataProto(
            batch=None, non_tensor_batch=dict(arrays), meta_info={"global_steps": step}
        )
        played = asyncio.run((worker or self.worker).generate_sequences(batch))
        played.non_tensor_batch["uid"] = arrays["uid"]
        return played

    @cached_property
    def worker(self) -> Any:
        return GemAgentLoopWorker(self.settings, self.client)


@pytest.fixture(scope="module")
def harness() -> LegacyHarness:
    return LegacyHarness()


def test_conformance_table_passes(harness: LegacyHarness, say: Callable[[str], None]) -> None:
    results = run(harness, ranks=False, played=False)
    say(report(harness, results))
    (failed,) = [r for r in results if r.outcome == "FAILED"]
    assert failed.case == "statistics per environment"
    assert "per_env needs the environment of each sequence" in failed.why
    unsupported = {c.name for c in CASES if c.needs & {"several_sequences", "critic_values"}}
    assert {r.case for r in results if r.outcome == "rejected"} == unsupported


def test_group_advantage_includes_rewards_of_masked_first_turns(harness: LegacyHarness) -> None:
    by_name = {case.name: case for case in CASES}
    plain = by_name["ragged turns"].episodes[0]
    masked = replace(
        plain,
        turns=(replace(plain.turns[0], status=TurnStatus.MASKED, reward=-0.5), *plain.turns[1:]),
    )
    other = replace(by_name["one turn"].episodes[0], seed=plain.seed)
    case = Case("grpo", (masked, other), "grpo", 0.9)
    per_turn = advantages(case.episodes, "grpo", gamma=0.9)
    for sequence, episode, numbers in zip(harness.train(case), case.episodes, per_turn):
        (played,) = token_sequences(episode)
        assert sequence.advantages == pytest.approx(played.broadcast(numbers), abs=1e-5)


def test_last_token_of_each_turn_carries_its_reward(tmp_path: Path) -> None:
    record = str(tmp_path / "e.jsonl")
    config = GemConfig(
        ECHO, seeds=8, max_turn_tokens=6, gamma=0.9, record=record, horizon="1,1,2@1"
    )
    played = LegacyHarness(config, Client()).generate(columns_of(ECHO, range(6)), 3)
    episodes = {e.seed: e for e in read_episodes(record)}
    assert max(len(e.turns) for e in episodes.values()) == 2  # the horizon of step 3
    for seed in range(6):
        scores = played.batch["rm_scores"][seed]
        assert scores[scores != 0].tolist() == pytest.approx(
            [r for r in episodes[seed].rewards if r]
        )
        assert played.non_tensor_batch["return"][seed] == pytest.approx(episodes[seed].total_reward)


def test_episode_at_the_turn_limit_is_not_a_success(tmp_path: Path) -> None:
    env_id, record = "game:GuessTheNumber-v0-easy", str(tmp_path / "e.jsonl")
    config = GemConfig(env_id, seeds=8, max_turn_tokens=16, horizon=1, record=record)
    played = LegacyHarness(config, Client(), ["data.max_prompt_length=256"]).generate(
        columns_of(env_id, range(8)), 1
    )
    episodes = {e.seed: e for e in read_episodes(record)}
    assert {e.stop for e in episodes.values()} >= {StopReason.TURN_LIMIT}
    assert played.non_tensor_batch["success"].tolist() == [
        float(bool(episodes[seed].success)) for seed in range(8)
    ]


def test_verls_own_worker_is_rejected() -> None:
    harness = LegacyHarness(GemConfig(ECHO, seeds=8), Client())
    with pytest.raises(ConfigError, match="agent_loop_manager_class in gem_verl.legacy"):
        harness.generate(
            columns_of(ECHO, [0]), 1, AgentLoopWorker(harness.settings, harness.client)
        )


def test_rewritten_history_is_rejected() -> None:
    settings = LegacyHarness(GemConfig(ECHO, seeds=8, wrappers="concat"), Client()).settings
    with pytest.raises(ConfigError, match="verl's legacy trainer takes one"):
        GemAgentLoopWorker(settings, None)
