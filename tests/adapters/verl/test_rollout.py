"""Episodes played through verl's own agent loop workers: what is trained is what was sampled, and bad rollouts are data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verl.protocol import DataProto
from verl.workers.rollout.replica import TokenOutput

from gem_core.errors import ConfigError
from gem_core.policies.tiny import load_tiny
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_views
from gem_core.types import Episode, Sampling, StopReason
from gem_verl import GemSpec
from gem_verl.conformance import LegacyHarness, VerlHarness
from gem_verl.dataset import row_of

ECHO = "test:Echo-v0"


class Client:
    """What verl's workers generate with, without a server behind it: the tiny model in this process."""

    def __init__(self) -> None:
        model, tokenizer = load_tiny()
        self.policy = TransformersPolicy(model, tokenizer, seed=0)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.spoil: Callable[[TokenOutput], TokenOutput] = lambda output: output

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.asked.append((request_id, sampling_params))
        found = await self.policy.generate(prompt_ids, Sampling(max_tokens=sampling_params["max_tokens"]))
        steps = {"min_global_steps": 3 + len(self.asked) % 2, "max_global_steps": 4 + len(self.asked) % 2}
        return self.spoil(TokenOutput(token_ids=list(found.ids), log_probs=list(found.logprobs or ()), extra_fields=steps))


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Any]:
    """`play(seeds, **GemSpec fields)`: (harness, rows by key, episodes) of one batch through the default trainer."""

    def played(
        seeds: Sequence[int],
        env_id: str = ECHO,
        settings: Sequence[str] = (),
        client: Any = None,
        samples: int = 1,
        **fields: Any,
    ) -> tuple[VerlHarness, dict[str, Any], list[Episode]]:
        record = tmp_path / "episodes.jsonl"
        spec = GemSpec(env_id, seeds=seeds, **{"max_turn_tokens": 6, "gamma": 0.9, "record": str(record), **fields})
        harness = VerlHarness(spec, client or Client(), settings)
        rows = [row_of(env_id, seed, i) for i, seed in enumerate(seeds)]
        columns = {name: [row[name] for row in rows] for name in ("raw_prompt", "extra_info", "index")}
        columns |= {"uid": [str(i) for i in range(len(seeds))], "__rollout_n__": [samples] * len(seeds)}
        found = harness.credit(columns)
        return harness, found, list(read_episodes(record))

    return played


def expected(episodes: Sequence[Episode], estimator: str = "rebn", gamma: float = 0.9) -> list[Any]:
    return sorted(
        (view.ids, view.mask, tuple(np.float32(a) for a in view.spread(numbers)))
        for episode, numbers in zip(episodes, advantages(episodes, estimator, gamma=gamma))
        for view in token_views(episode)
    )


def trained(rows: dict[str, Any]) -> list[Any]:
    return sorted((tuple(r.ids), tuple(r.mask), tuple(r.advantages)) for r in rows.values() if any(r.mask))


def check_same(rows: dict[str, Any], episodes: Sequence[Episode], estimator: str = "rebn") -> None:
    found, want = trained(rows), expected(episodes, estimator)
    assert [row[:2] for row in found] == [row[:2] for row in want]
    for (_, _, a), (_, _, b) in zip(found, want):
        assert a == pytest.approx(b, abs=2e-6)


def advantage_abs(episodes: Sequence[Episode], estimator: str = "rebn", gamma: float = 0.9) -> float:
    credit = zip(episodes, advantages(episodes, estimator, gamma=gamma))
    sizes = [abs(a) for episode, numbers in credit for t, a in enumerate(numbers) if episode.trained(t)]
    return sum(sizes) / len(sizes)


def test_what_is_trained_is_what_was_played(play: Callable[..., Any]) -> None:
    client = Client()
    harness, rows, episodes = play(range(8), client=client)
    assert {len(e.turns) for e in episodes} == {1, 2, 3}
    check_same(rows, episodes)
    logprobs = {tuple(r.ids): r.logprobs for r in rows.values()}
    for episode in episodes:
        (view,) = token_views(episode)
        assert logprobs[view.ids] == pytest.approx(view.logprobs, abs=1e-6)
    assert len({request for request, _ in client.asked}) == len(episodes), "an episode keeps one request id: one server"
    assert harness.metrics["gem/turns"] == sum(len(e.turns) for e in episodes) / 8
    assert harness.metrics["gem/return"] == pytest.approx(sum(e.total_reward for e in episodes) / 8)
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes), abs=1e-6)


def test_the_weight_versions_of_an_episode_reach_verl(play: Callable[..., Any]) -> None:
    harness, rows, episodes = play([2])
    versions = [turn.versions for turn in episodes[0].turns]
    (tag,) = [harness.tags[key] for key in rows]
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (min(v[0] for v in versions), max(v[1] for v in versions))


def test_a_failed_episode_costs_neither_its_group_nor_the_batch(play: Callable[..., Any]) -> None:
    harness, rows, episodes = play([0, 1], "test:Moody-v0", samples=2, advantage="grpo")
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes, "grpo"), abs=1e-6)
    assert [e.stop for e in sorted(episodes, key=lambda e: e.seed)][2:] == [StopReason.ENV_ERROR] * 2
    assert len(rows) == 4 and len(trained(rows)) == 2
    check_same(rows, episodes, "grpo")
    assert harness.metrics["gem/failed"] == 0.5
    assert all(isinstance(harness.tags[key]["min_global_steps"], int) for key in rows)


def test_an_environment_that_cannot_be_made_is_a_row_that_trains_nothing(play: Callable[..., Any]) -> None:
    harness, rows, episodes = play([0, 1], "test:Unmakable-v0")
    assert [e.stop for e in episodes] == [StopReason.ENV_ERROR] * 2 and trained(rows) == []
    assert all(isinstance(harness.tags[key]["min_global_steps"], int) for key in rows)
    assert harness.metrics["gem/advantage_abs"] == 0.0
    assert harness.trainer._update_actor("the batch", {}) == "the batch", "nothing to train is no update"


@pytest.mark.parametrize("estimator", ["rebn", "grpo"])
def test_a_rewritten_history_is_several_rows(play: Callable[..., Any], estimator: str) -> None:
    harness, rows, episodes = play([1, 2, 4, 5], "test:Moody-v0", wrappers="concat", advantage=estimator, samples=2, retries=0)
    played = [e for e in episodes if not e.failed]
    assert len(trained(rows)) == 2 * len(played) > 0
    check_same(rows, episodes, estimator)
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes, estimator), abs=1e-6)


def test_the_horizon_follows_the_step(play: Callable[..., Any]) -> None:
    spec = {"horizon": {"rounds": [1, 2], "every": 1}}
    harness, _, episodes = play([2, 5], **spec)
    assert [len(e.turns) for e in episodes] == [1, 1]
    columns = {"raw_prompt": [[]], "extra_info": [{"gem": {"seed": 8}}], "index": [0], "uid": ["0"]}
    harness.credit(columns)
    assert harness.metrics["gem/turns"] == 2


def test_a_server_that_breaks_is_verls_business(play: Callable[..., Any]) -> None:
    """A whole batch of failed episodes, step after step, would look like training."""

    def broken(output: TokenOutput) -> TokenOutput:
        raise RuntimeError("CUDA out of memory")

    client = Client()
    client.spoil = broken
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        play([0, 1], client=client)


def test_an_aborted_generation_is_a_failed_episode(play: Callable[..., Any]) -> None:
    client = Client()
    client.spoil = lambda output: output.model_copy(update={"stop_reason": "aborted"})
    _, rows, episodes = play([0], client=client)
    assert [e.stop for e in episodes] == [StopReason.POLICY_ERROR] and trained(rows) == []


def test_an_estimator_of_verl_gets_the_rewards_as_they_were_paid(play: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="counts a failed episode"):
        _, rows, episodes = play(range(6), settings=["algorithm.adv_estimator=reinforce_plus_plus"])
    assert sorted(sum(r.rewards) for r in rows.values()) == pytest.approx(sorted(e.total_reward for e in episodes))


class TestLegacy:
    """verl's legacy trainer."""

    def play(self, worker: Any, seeds: Sequence[int]) -> Any:
        rows = [row_of(ECHO, seed, i) for i, seed in enumerate(seeds)]
        columns = {}
        for name in ("raw_prompt", "extra_info", "index"):
            columns[name] = np.empty(len(rows), dtype=object)
            columns[name][:] = [row[name] for row in rows]
        batch = DataProto(batch=None, non_tensor_batch=columns, meta_info={"global_steps": 3})
        return asyncio.run(worker.generate_sequences(batch))

    def test_rewards_stand_on_the_last_token_of_each_turn(self, tmp_path: Path) -> None:
        spec = GemSpec(ECHO, seeds=8, max_turn_tokens=6, gamma=0.9, record=str(tmp_path / "e.jsonl"), horizon="1,1,2@1")
        played = self.play(LegacyHarness(spec, Client()).worker, range(6))
        episodes = {e.seed: e for e in read_episodes(tmp_path / "e.jsonl")}
        assert max(len(e.turns) for e in episodes.values()) == 2, "the third step's horizon"
        for seed in range(6):
            scores = played.batch["rm_scores"][seed]
            assert scores[scores != 0].tolist() == pytest.approx([r for r in episodes[seed].rewards if r])
            assert played.non_tensor_batch["return"][seed] == pytest.approx(episodes[seed].total_reward)

    def test_a_game_cut_short_is_no_success(self, tmp_path: Path) -> None:
        record = str(tmp_path / "e.jsonl")
        spec = GemSpec("game:GuessTheNumber-v0-easy", seeds=8, max_turn_tokens=16, horizon=1, record=record)
        played = self.play(LegacyHarness(spec, Client(), ["data.max_prompt_length=256"]).worker, range(8))
        episodes = {e.seed: e for e in read_episodes(record)}
        assert {e.stop for e in episodes.values()} >= {StopReason.TURN_LIMIT}
        assert played.non_tensor_batch["success"].tolist() == [float(bool(episodes[seed].success)) for seed in range(8)]

    def test_verls_own_worker_is_refused(self) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

        harness = LegacyHarness(GemSpec(ECHO, seeds=8), Client())
        with pytest.raises(ConfigError, match="agent_loop_manager_class=gem_verl.worker.GemAgentLoopManager"):
            self.play(AgentLoopWorker(harness.config, harness.client), [0])
