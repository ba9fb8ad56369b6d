"""Episodes through verl's own agent loop workers: the trainer gets exactly the sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from client import Client, columns_of
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from worlds import ECHO, MOODY, Echo

from gem_core import register
from gem_core.env.registry import environments
from gem_core.errors import ConfigError
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode, StopReason
from gem_verl import GemConfig
from gem_verl.conformance import VerlHarness, objects
from gem_verl.recorder import interrupted_episodes


@pytest.fixture
def play(cluster: None, tmp_path: Path) -> Callable[..., Any]:
    """Return `play(seeds, **config_fields)`, which runs one batch through verl's default trainer.

    It returns (harness, sequences by key, recorded episodes).
    """

    def play_batch(
        seeds: Sequence[int],
        env_id: str = ECHO,
        settings: Sequence[str] = (),
        client: Any = None,
        samples: int = 1,
        **fields: Any,
    ) -> tuple[VerlHarness, dict[str, Any], list[Episode]]:
        record = tmp_path / "episodes.jsonl"
        config = GemConfig(
            env_id,
            seeds=seeds,
            **{"max_turn_tokens": 6, "gamma": 0.9, "record": str(record), **fields},
        )
        harness = VerlHarness(config, client or Client(), settings)
        sequences = harness.sequences(
            {**columns_of(env_id, seeds), "__rollout_n__": [samples] * len(seeds)}
        )
        return harness, sequences, list(read_episodes(record))

    return play_batch


def expected(episodes: Sequence[Episode], estimator: str = "rebn", gamma: float = 0.9) -> list[Any]:
    return sorted(
        (sequence.ids, sequence.mask, tuple(np.float32(a) for a in sequence.broadcast(numbers)))
        for episode, numbers in zip(episodes, advantages(episodes, estimator, gamma=gamma))
        for sequence in token_sequences(episode)
    )


def trained(sequences: dict[str, Any]) -> list[Any]:
    return sorted(
        (tuple(s.ids), tuple(s.mask), tuple(s.advantages))
        for s in sequences.values()
        if any(s.mask)
    )


def check_same(
    sequences: dict[str, Any], episodes: Sequence[Episode], estimator: str = "rebn"
) -> None:
    actual, wanted = trained(sequences), expected(episodes, estimator)
    assert [fields[:2] for fields in actual] == [fields[:2] for fields in wanted]
    assert [fields[2] for fields in actual] == [fields[2] for fields in wanted]  # exactly equal


def advantage_abs(
    episodes: Sequence[Episode], estimator: str = "rebn", gamma: float = 0.9
) -> float:
    per_turn = zip(episodes, advantages(episodes, estimator, gamma=gamma))
    sizes = [
        abs(a) for episode, numbers in per_turn for t, a in enumerate(numbers) if episode.trained(t)
    ]
    return sum(sizes) / len(sizes)


@pytest.mark.parametrize(("engine", "own"), [("vllm", {"detokenize": False}), ("sglang", {})])
def test_only_vllm_is_asked_for_no_text(
    play: Callable[..., Any], engine: str, own: dict[str, Any]
) -> None:
    client = Client()
    play([0], settings=[f"actor_rollout_ref.rollout.name={engine}"], client=client)
    for _, params in client.calls:
        assert {name: params[name] for name in params if name == "detokenize"} == own


def test_exactly_the_sampled_tokens_are_trained(
    play: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    harness, sequences, episodes = play(range(8), client=client)
    assert "Continuous Token" not in caplog.text, "verl warns in every episode"
    assert {len(e.turns) for e in episodes} == {1, 2, 3}
    check_same(sequences, episodes)
    logprobs = {tuple(s.ids): s.logprobs for s in sequences.values()}
    for episode in episodes:
        (sequence,) = token_sequences(episode)
        assert logprobs[sequence.ids] == pytest.approx(sequence.logprobs, abs=1e-6)
    request_ids = {request_id for request_id, _ in client.calls}
    assert len(request_ids) == len(episodes), "an episode must keep its request id"
    for episode, numbers in zip(episodes, advantages(episodes, "rebn", gamma=0.9)):
        assert episode.final_info["advantages"] == pytest.approx(numbers)
        assert episode.final_info["update"] == 0 and "evaluation" not in episode.final_info
    assert harness.metrics["gem/turns"] == sum(len(e.turns) for e in episodes) / 8
    assert harness.metrics["gem/return"] == pytest.approx(sum(e.total_reward for e in episodes) / 8)
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes))


def test_dropped_and_unused_episodes_are_recorded(cluster: None, tmp_path: Path) -> None:
    """The trainer stops after verl has played four episodes and dropped one."""
    import transfer_queue as tq
    from verl.utils import tensordict_utils as tu

    record = tmp_path / "episodes.jsonl"
    config = GemConfig(ECHO, seeds=4, max_turn_tokens=6, record=str(record))
    harness = VerlHarness(config, Client())
    trainer, columns = harness.trainer, columns_of(ECHO, range(4))
    trainer.global_steps, trainer.agent_loop_manager = 1, harness._inline_manager
    columns["extra_info"][3]["gem"]["evaluation"] = True
    columns["__rollout_n__"] = [1] * 4
    prompts = tu.get_tensordict({name: objects(column) for name, column in columns.items()})
    tu.assign_non_tensor_data(prompts, "global_steps", 1)
    trainer._submit_batch_to_rollout(prompts)
    assert sorted(e.seed for e in interrupted_episodes()) == [0, 1, 2, 3]
    trainer.replay_buffer._sync_metadata_from_transfer_queue()
    trainer.replay_buffer._clear_groups("train", {"0"})
    assert [e.seed for e in read_episodes(record)] == [0]
    trainer._recorder.close()
    episodes = sorted(read_episodes(record), key=lambda e: e.seed)
    assert [e.seed for e in episodes] == [0, 1, 2, 3]
    assert [e.final_info.get("evaluation", False) for e in episodes] == [False] * 3 + [True]
    tq.kv_clear(keys=list(tq.kv_list("train")["train"]), partition_id="train")


def test_verl_gets_the_weight_versions_of_an_episode(play: Callable[..., Any]) -> None:
    harness, sequences, episodes = play([2])
    versions = [turn.versions for turn in episodes[0].turns]
    (tag,) = [harness.tags[key] for key in sequences]
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (
        min(v[0] for v in versions),
        max(v[1] for v in versions),
    )


def test_failed_episode_does_not_fail_its_group_or_batch(play: Callable[..., Any]) -> None:
    harness, sequences, episodes = play([0, 1], MOODY, samples=2, advantage="grpo")
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes, "grpo"))
    assert [e.stop for e in sorted(episodes, key=lambda e: e.seed)][2:] == [
        StopReason.ENV_ERROR
    ] * 2
    assert len(sequences) == 4 and len(trained(sequences)) == 2
    check_same(sequences, episodes, "grpo")
    assert harness.metrics["gem/failed"] == 0.5
    assert all(isinstance(harness.tags[key]["min_global_steps"], int) for key in sequences)


class FailingConstructor(Echo):
    """Raises in its constructor."""

    def __init__(self) -> None:
        raise RuntimeError("the disk is full")


def test_batch_without_trained_tokens_is_not_an_update(play: Callable[..., Any]) -> None:
    env_id = "test:FailingConstructor-v0"
    register(env_id, FailingConstructor)
    try:
        harness, sequences, episodes = play([0, 1], env_id)
    finally:
        environments.remove(env_id)
    assert [e.stop for e in episodes] == [StopReason.ENV_ERROR] * 2 and trained(sequences) == []
    assert all(isinstance(harness.tags[key]["min_global_steps"], int) for key in sequences)
    assert harness.metrics["gem/failed"] == 1.0 and "gem/advantage_abs" not in harness.metrics
    assert harness.trainer._update_actor("the batch", {}) == "the batch"
    assert harness.trainer._update_critic("the batch", {}) == "the batch"


@pytest.mark.setting("Rewritten history", "works")
@pytest.mark.parametrize("estimator", ["rebn", "grpo"])
def test_rewritten_history_becomes_several_sequences(
    play: Callable[..., Any], estimator: str
) -> None:
    harness, sequences, episodes = play(
        [1, 2, 4, 5], MOODY, wrappers="concat", advantage=estimator, samples=2, retries=0
    )
    finished = [e for e in episodes if not e.failed]
    assert len(trained(sequences)) == 2 * len(finished) > 0
    check_same(sequences, episodes, estimator)
    assert harness.metrics["gem/advantage_abs"] == pytest.approx(advantage_abs(episodes, estimator))


@pytest.mark.setting("Growing horizon", "works")
def test_horizon_grows_with_the_step(play: Callable[..., Any]) -> None:
    harness, _, episodes = play([2, 5], horizon={"rounds": [1, 2], "every": 1})
    assert [len(e.turns) for e in episodes] == [1, 1]
    harness.sequences(columns_of(ECHO, [8]))
    assert harness.metrics["gem/turns"] == 2


def fails(output: TokenOutput) -> TokenOutput:
    raise RuntimeError("CUDA out of memory")


def without_logprobs(output: TokenOutput) -> TokenOutput:
    return output.model_copy(update={"log_probs": None})


@pytest.mark.parametrize("change", [fails, without_logprobs])
def test_engine_failure_ends_the_run(
    play: Callable[..., Any], change: Callable[[TokenOutput], TokenOutput]
) -> None:
    """As failed episodes, engine failures would lead to empty batches, step after step."""
    with pytest.raises(RuntimeError, match="no materializable trajectories"):
        play([0, 1], client=Client(change))


class AsyncClient(FullyAsyncLLMServerClient):
    """verl's client of its async trainers, over the stub: each request is aborted once."""

    def __init__(self, abort: bool = True) -> None:
        self.config, self.stub, self.abort = None, Client(), abort
        self.resumed: set[str] = set()


@pytest.fixture
def async_client(monkeypatch: pytest.MonkeyPatch) -> AsyncClient:
    async def generate(self: AsyncClient, request_id: str, **kwargs: Any) -> TokenOutput:
        params = kwargs["sampling_params"]
        first = request_id not in self.resumed and params["max_tokens"] > 2
        self.resumed.add(request_id)
        if first:  # verl aborts running requests to update the weights
            params = {**params, "max_tokens": 2}
        output = await self.stub.generate(request_id, **{**kwargs, "sampling_params": params})
        output.log_probs = output.log_probs if params["logprobs"] else None
        output.stop_reason = "aborted" if first and len(output.token_ids) == 2 else "completed"
        output.extra_fields = {"global_steps": 3 if first else 4}
        return output

    async def no_sleep(seconds: float) -> None: ...

    monkeypatch.setattr(LLMServerClient, "generate", generate)
    monkeypatch.setattr("verl.workers.rollout.llm_server.asyncio", SimpleNamespace(sleep=no_sleep))
    return AsyncClient()


COLOCATE = ["trainer.v1.trainer_mode=gem_colocate_async"]
SEPARATE = [
    "trainer.v1.trainer_mode=gem_separate_async",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "trainer.v1.separate_async.parameter_sync_step=1",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
]


@pytest.mark.parametrize("settings", [COLOCATE, SEPARATE], ids=["colocate", "separate"])
def test_async_trainers_get_the_sampled_tokens_of_resumed_turns(
    play: Callable[..., Any], async_client: AsyncClient, settings: list[str]
) -> None:
    harness, sequences, episodes = play(range(8), client=async_client, settings=settings)
    check_same(sequences, episodes)
    assert {e.turns[0].versions for e in episodes} >= {(3, 4)}, "two versions sampled a turn"
    assert harness.metrics["gem/failed"] == 0.0


@pytest.mark.parametrize("settings", [COLOCATE, SEPARATE], ids=["colocate", "separate"])
def test_async_trainers_play_without_logprobs(
    play: Callable[..., Any], async_client: AsyncClient, settings: list[str]
) -> None:
    """verl's async client returns an empty list of logprobs if it requests none."""
    _, sequences, episodes = play(
        range(8),
        client=async_client,
        settings=[*settings, "actor_rollout_ref.rollout.calculate_log_probs=False"],
    )
    assert all(not e.failed and e.turns[0].logprobs is None for e in episodes)
    check_same(sequences, episodes)


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(
    play: Callable[..., Any], batch_ends: list[list[Episode]]
) -> None:
    play([0, 1, 2])
    assert [sorted(e.seed for e in episodes) for episodes in batch_ends] == [[0, 1, 2]]


def test_aborted_generation_fails_its_episode(play: Callable[..., Any]) -> None:
    client = Client(lambda output: output.model_copy(update={"stop_reason": "aborted"}))
    _, sequences, episodes = play([0], client=client)
    assert [e.stop for e in episodes] == [StopReason.POLICY_ERROR] and trained(sequences) == []


def test_verls_own_estimators_get_undiscounted_rewards(play: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match="counts a failed episode"):
        harness, sequences, episodes = play(
            range(6), settings=["algorithm.adv_estimator=reinforce_plus_plus"]
        )
    assert sorted(sum(s.rewards) for s in sequences.values()) == pytest.approx(
        sorted(e.total_reward for e in episodes)
    )
    assert harness.metrics["gem/advantage_abs"] > 0


def test_dataset_row_without_a_task_is_rejected() -> None:
    with pytest.raises(ConfigError, match="has no gem task"):
        GemConfig(ECHO, seeds=8).task_of({"extra_info": {"index": 0}})
