"""Episodes through RL2's real rollout and router: the trainer gets exactly the sampled tokens."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
import torch
from located import wait_for_exit
from rl2_worlds import FICKLE, SLOW, Fickle, Slow
from thinking_template import SHORTENING
from worlds import ECHO, MOODY

import gem_rl2.rollout
from gem_core import register
from gem_core.adapter_kit.patching import patched
from gem_core.env.registry import environments
from gem_core.errors import BatchMismatchError, ConfigError, EngineError
from gem_core.policies.tiny import load_tiny
from gem_core.records.file import read_episodes
from gem_core.training.advantage import advantages
from gem_core.training.metrics_file import read_metrics
from gem_core.training.sequences import token_sequences
from gem_core.types import Episode, FinishReason, Sampling
from gem_rl2.rollout import EnginePolicy, ServerError
from gem_rl2.trainer import patched_trainer
from gem_rl2.unsharded_actor import UnshardedActor

RL2_KEYS = ("states", "eos_mask", "position_ids", "actions", "action_mask", "llm_logps", "rewards")

Play = Callable[..., Any]


def with_gem(state: Any) -> AbstractContextManager[None]:
    """Replace the advantages of RL2's trainer with gem's. `state`: the rollout's `RolloutState`."""
    return patched_trainer(state, "config raw_tensor_dict cu_seqs step")


def put_advantages(state: Any, tensors: Any, cu_seqs: Any, step: int = 1) -> None:
    """Compute advantages as RL2's trainer does."""
    with with_gem(state):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, step)


def sequences_in(batch: tuple[Any, Any]) -> list[list[tuple[list[int], list[int], list[float]]]]:
    """Return (ids, mask, logprobs) of each sequence of each trajectory."""
    tensors, cu_seqs = batch
    lengths = (tensors["eos_mask"].argmax(-1) + 1).tolist()
    trajectories = []
    for start, end in zip(cu_seqs.tolist(), cu_seqs.tolist()[1:]):
        trajectories.append([])
        for i in range(start, end):
            fields = {k: v[i, : lengths[i]].tolist() for k, v in tensors.items()}
            trajectories[-1].append(
                (
                    [*fields["states"], fields["actions"][-1]],
                    [0, *fields["action_mask"]],
                    [0.0, *fields["llm_logps"]],
                )
            )
    return trajectories


def logprobs_of(model: Any, ids: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    return [0.0, *logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()]


def check_identical(batch: tuple[Any, Any], episodes: list[Episode]) -> None:
    trajectories = sequences_in(batch)
    assert len(trajectories) == len(episodes)
    for trained, episode in zip(trajectories, episodes):
        played = token_sequences(episode)
        assert [sequence[0] for sequence in trained] == [list(sequence.ids) for sequence in played]
        assert [sequence[1] for sequence in trained] == [list(sequence.mask) for sequence in played]
        for (_, _, logprobs), sequence in zip(trained, played):
            assert logprobs == pytest.approx(
                [p * m for p, m in zip(sequence.logprobs or (), sequence.mask)], abs=1e-6
            )


def test_exactly_the_sampled_tokens_are_trained(play: Play) -> None:
    batch, episodes, _ = play(ECHO, list(range(12)))
    assert {len(e.turns) for e in episodes} == {1, 2, 3}
    assert [e.seed for e in episodes] == list(range(12))
    check_identical(batch, episodes)
    model, _ = load_tiny()
    for trajectory in sequences_in(batch):
        for ids, mask, logprobs in trajectory:
            recomputed = [p * m for p, m in zip(logprobs_of(model, ids), mask)]
            assert logprobs == pytest.approx(recomputed, abs=1e-3)


@pytest.mark.parametrize("train", [True, False])
def test_server_is_asked_to_stop_at_the_end_of_a_turn(
    play: Play, running: tuple[Any, Any], train: bool
) -> None:
    """A base model's own end token is another one: it would play on past its turn."""
    _, rollout = running
    _, episodes, state = play(ECHO, [0], train=train)
    with urlopen(f"{rollout.worker_url}/last_request", timeout=30) as response:
        body = json.load(response)
    assert state.renderer.turn_end is not None
    assert body["sampling_params"]["stop_token_ids"] == [state.renderer.turn_end]
    assert body["sampling_params"]["no_stop_trim"] is True
    assert body["sampling_params"]["max_new_tokens"] == 6
    assert body["return_logprob"] is True
    assert body["input_ids"] == list(episodes[0].prompt_ids(len(episodes[0].turns) - 1))


@pytest.mark.setting("`batch_end`", "works")
def test_plugins_get_the_whole_batch_once(play: Play, batch_ends: list[list[Episode]]) -> None:
    play(ECHO, [0, 1, 2])
    play(ECHO, [3, 4], train=False)
    assert [sorted(e.seed for e in episodes) for episodes in batch_ends] == [[0, 1, 2]]


def test_last_token_of_each_turn_carries_its_reward(play: Play) -> None:
    (tensors, _), episodes, _ = play(ECHO, [2, 5, 8])
    for i, episode in enumerate(episodes):
        (sequence,) = token_sequences(episode)
        rewards = [0.0] * len(sequence.ids)
        for turn, _, end in sequence.spans:
            rewards[end - 1] = episode.rewards[turn]
        assert tensors["rewards"][i, : len(rewards) - 1].tolist() == pytest.approx(rewards[1:])


@pytest.mark.setting("Rewritten history", "works")
def test_rewritten_history_becomes_several_sequences_of_one_trajectory(play: Play) -> None:
    batch, episodes, _ = play(ECHO, [2, 5, 8], wrappers="concat_chat(window=1)")
    assert [len(trajectory) for trajectory in sequences_in(batch)] == [
        len(token_sequences(e)) for e in episodes
    ]
    assert max(len(token_sequences(e)) for e in episodes) > 1
    check_identical(batch, episodes)


def test_every_token_gets_the_advantage_of_its_turn(play: Play) -> None:
    (tensors, cu_seqs), episodes, state = play(ECHO, list(range(8)), gamma=0.9)
    put_advantages(state, tensors, cu_seqs)
    per_turn = advantages(episodes, "rebn", gamma=0.9)
    for actual, episode, numbers in zip(tensors["advantages"], episodes, per_turn):
        (sequence,) = token_sequences(episode)
        expected = sequence.broadcast(numbers)[1:]
        assert actual[: len(expected)].tolist() == pytest.approx(expected, abs=1e-6)
        assert not actual[len(expected) :].any()
    assert len(state.ledger) == 0


def test_environment_error_fails_only_its_own_episode(play: Play) -> None:
    (tensors, cu_seqs), episodes, state = play(MOODY, [0, 1, 2, 3])
    assert [e.failed for e in episodes] == [False, True, False, True]
    assert tensors["action_mask"].sum(-1).bool().tolist() == [True, False, True, False]
    put_advantages(state, tensors, cu_seqs)
    assert not tensors["advantages"][[1, 3]].any()


def test_batch_of_failed_episodes_changes_no_weight(play: Play, running: tuple[Any, Any]) -> None:
    """Not even by the momentum of the update before it, or by weight decay."""
    actor = UnshardedActor(running[0].actor, True)
    (tensors, cu_seqs), _, state = play(ECHO, [1, 3])
    with with_gem(state):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
        actor.update(tensors, 1)
    before = [p.detach().clone() for p in actor.model.parameters()]
    (tensors, cu_seqs), episodes, state = play(MOODY, [1, 3])
    assert all(e.failed for e in episodes)
    with with_gem(state):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 2)
        actor.update(tensors, 2)
    assert all(torch.equal(a, b) for a, b in zip(actor.model.parameters(), before))


def test_rl2_alone_makes_the_weights_nan_in_a_batch_of_failed_episodes(
    play: Play, running: tuple[Any, Any]
) -> None:
    """If this fails, RL2 has fixed `count_total`, and the adapter need not replace it."""
    (tensors, cu_seqs), _, state = play(MOODY, [1, 3])
    put_advantages(state, tensors, cu_seqs)
    actor = UnshardedActor(running[0].actor, True)
    actor.update(tensors, 1)
    assert any(torch.isnan(p).any() for p in actor.model.parameters())


@pytest.mark.setting("DAPO filter", "works")
def test_dropped_groups_do_not_change_the_advantages_of_others(
    play: Play, running: tuple[Any, Any]
) -> None:
    """`dynamic_filtering` drops groups with equal returns between rollout and advantages."""
    rollout_settings = running[1].config
    rollout_settings.responses_per_prompt, rollout_settings.dynamic_filtering = 2, True
    try:
        # about one in seven groups has equal returns
        seeds = [seed for seed in range(0, 360, 3) for _ in range(2)]
        (tensors, cu_seqs), episodes, state = play(ECHO, seeds, advantage="grpo")
    finally:
        rollout_settings.responses_per_prompt = 1
    pairs = zip(episodes[::2], episodes[1::2])
    unequal = [(a, b) for a, b in pairs if a.total_reward != pytest.approx(b.total_reward)]
    trained_episodes = [episode for pair in unequal for episode in pair]
    assert 0 < len(trained_episodes) < len(episodes)
    put_advantages(state, tensors, cu_seqs)
    expected = {
        s.ids: numbers[0]
        for e, numbers in zip(trained_episodes, advantages(trained_episodes, "grpo"))
        for s in token_sequences(e)
    }
    assert len(tensors["states"]) == len(trained_episodes)
    for i, ((ids, _, _),) in enumerate(sequences_in((tensors, cu_seqs))):
        trained = tensors["advantages"][i][tensors["action_mask"][i].bool()]
        assert trained.tolist() == pytest.approx([expected[tuple(ids)]] * len(trained), abs=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "rebn"])
@pytest.mark.parametrize("logprobs", [False, True], ids=["directly", "after RL2's logprobs"])
def test_episodes_with_equal_ids_keep_their_own_advantages(
    play: Play, running: tuple[Any, Any], estimator: str, logprobs: bool
) -> None:
    """All sequences are equal; rewards depend on the seed, which no sequence shows.

    RL2 drops the odd seeds, whose returns are all 0, and packs, scatters and gathers the others.
    """
    Fickle.played.clear()
    rollout_settings = running[1].config
    rollout_settings.responses_per_prompt, rollout_settings.dynamic_filtering = 2, True

    async def constant(*args: Any) -> Any:
        return {
            "meta_info": {
                "finish_reason": {"type": "stop"},
                "output_token_logprobs": [[-0.5, 5, None]],
            }
        }

    try:
        with patched(rl2_rollout, "async_generate", constant):
            (tensors, cu_seqs), episodes, state = play(
                FICKLE, [1, 1, 2, 2, 3, 3, 4, 4], advantage=estimator
            )
    finally:
        rollout_settings.responses_per_prompt = 1
    assert len({sequence.ids for e in episodes for sequence in token_sequences(e)}) == 1
    if logprobs:
        tensors = UnshardedActor(running[0].actor, True).compute_logps(tensors, 1)
    put_advantages(state, tensors, cu_seqs)
    rewards = tensors["rewards"].sum(-1).tolist()
    assert sorted(rewards[:2]) == sorted(rewards[2:]) == [0.0, 1.0]
    assert tensors["advantages"].sum(-1).tolist() == pytest.approx(
        [1.0 if r else -1.0 for r in rewards], abs=1e-4
    )
    assert set(tensors) <= {*RL2_KEYS, "advantages", "old_logps"}, (
        "the loss must not get other tensors"
    )
    assert len(state.ledger) == 0


@pytest.mark.parametrize("name", ["states", "actions", "action_mask"])
def test_check_batch_rejects_changed_ids_or_mask(play: Play, name: str) -> None:
    (tensors, cu_seqs), _, state = play(ECHO, [0, 1, 2])
    tensors[name] = tensors[name].roll(1, dims=1)
    with pytest.raises(BatchMismatchError, match="sequence 0 of RL2's batch"):
        put_advantages(state, tensors, cu_seqs)


def test_batch_without_episode_numbers_is_rejected(play: Play) -> None:
    (tensors, cu_seqs), _, state = play(ECHO, [0, 1, 2])
    del tensors["gem_number"]
    with pytest.raises(BatchMismatchError, match="no 'gem_number'"):
        put_advantages(state, tensors, cu_seqs)


def test_trajectory_of_two_episodes_is_rejected(play: Play) -> None:
    (tensors, cu_seqs), _, state = play(ECHO, [0, 1, 2])
    with pytest.raises(
        BatchMismatchError, match="trajectory 0 of RL2's batch is not one played episode"
    ):
        put_advantages(state, tensors, cu_seqs[[0, 2, 3]])


def test_trajectory_with_a_lost_sequence_is_rejected(play: Play) -> None:
    (tensors, cu_seqs), episodes, state = play(ECHO, [2, 5], wrappers="concat_chat(window=1)")
    assert len(token_sequences(episodes[1])) > 1
    tensors, cu_seqs[-1] = {name: tensor[:-1] for name, tensor in tensors.items()}, cu_seqs[-1] - 1
    with pytest.raises(BatchMismatchError, match="trajectory 1 of RL2's batch has"):
        put_advantages(state, tensors, cu_seqs)


def test_slow_environment_delays_only_its_own_episode(play: Play) -> None:
    Slow.ended = threading.Semaphore(0)
    _, episodes, _ = play(SLOW, [0, *range(2, 10)])
    assert not any(e.failed for e in episodes)


@pytest.mark.setting("Growing horizon", "works")
def test_horizon_grows_with_the_step(play: Play) -> None:
    turns = [
        max(len(e.turns) for e in play(ECHO, [2, 5], step=step, horizon="1,2,3@1")[1])
        for step in (1, 2, 3)
    ]
    assert turns == [1, 2, 3]


def test_sequences_do_not_exceed_the_maximum_length(play: Play, running: tuple[Any, Any]) -> None:
    running[1].state.max_context, before = 64, running[1].state.max_context
    try:
        (tensors, _), episodes, _ = play(ECHO, [2, 5, 8], max_turn_tokens=64)
    finally:
        running[1].state.max_context = before
    assert tensors["states"].shape[1] <= 64
    assert "context_full" in {e.stop.value for e in episodes}


@pytest.mark.setting("Evaluation", "works")
def test_evaluation_episodes_do_not_enter_the_ledger(play: Play) -> None:
    batch, episodes, state = play(ECHO, [0, 1, 2], train=False)
    assert batch is None
    assert len(episodes) == 3
    assert len(state.ledger) == 0


def test_servers_sample_from_the_updated_weights(play: Play, running: tuple[Any, Any]) -> None:
    settings, rollout = running
    actor = UnshardedActor(settings.actor, True)
    before = {n: p.detach().clone() for n, p in actor.model.named_parameters()}
    with torch.no_grad():
        for p in actor.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    try:
        rollout.update(actor, 1)
        batch, _, _ = play(ECHO, [0, 1, 2, 3])
        actor.model.eval()
        for trajectory in sequences_in(batch):
            for ids, mask, logprobs in trajectory:
                assert logprobs == pytest.approx(
                    [p * m for p, m in zip(logprobs_of(actor.model, ids), mask)], abs=1e-3
                )
    finally:
        with torch.no_grad():
            for n, p in actor.model.named_parameters():
                p.copy_(before[n])
        rollout.update(actor, 1)


def test_engine_failure_ends_the_run(play: Play) -> None:
    async def failing(*args: Any) -> Any:
        return {"error": {"message": "out of memory"}}

    with (
        patched(rl2_rollout, "async_generate", failing),
        pytest.raises(ServerError, match="out of memory"),
    ):
        play(ECHO, [0, 1], retries=1)


def test_retry_covers_a_single_engine_failure(play: Play) -> None:
    async_generate, calls = rl2_rollout.async_generate, []

    async def failing_once(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            return {"error": {"message": "try again"}}
        return await async_generate(*args)

    with patched(rl2_rollout, "async_generate", failing_once):
        _, episodes, _ = play(ECHO, [0, 1], retries=1)
    assert not any(e.failed for e in episodes)


def test_dead_router_ends_the_run(
    start_rollout: Callable[[], tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RL2's own request to a dead router does not end, not even when it is cancelled once."""
    _, rollout = start_rollout()
    rows = [{"extra_info": {"seed": seed}} for seed in range(8)]
    for process in rollout._processes:
        process.kill()
    monkeypatch.setattr(gem_rl2.rollout, "_SECONDS_BETWEEN_CHECKS", 0.5)
    with pytest.raises(ServerError, match="server or router ended with exit code -9"):
        rollout(rows, True, 1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gem_rl2.rollout, "_SECONDS_BETWEEN_CHECKS", 1000)
    rollout._loop.call_later(2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        rollout(rows, True, 1)
    began = time.monotonic()
    rollout.close()
    assert time.monotonic() - began < 4


def test_dataset_row_without_a_task_is_rejected(running: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="has no gem task"):
        running[1]([{"extra_info": {}}], True, 1)


@pytest.mark.setting("Template mode", "works")
def test_history_as_the_template_writes_it(play: Play, running: tuple[Any, Any]) -> None:
    with patched(running[1].tokenizer, "chat_template", SHORTENING):
        (tensors, cu_seqs), episodes, state = play(ECHO, [2, 5], history="template")
    sequences = [token_sequences(e) for e in episodes]
    assert [len(s) for s in sequences] == [3, 3]
    assert sorted(cu_seqs.tolist()) == [0, 3, 6]
    put_advantages(state, tensors, cu_seqs)
    # RL2 starts and ends episodes in any order
    expected = advantages(episodes, "rebn")
    trained = sorted(
        round(float(row[mask.bool()][0]), 5)
        for row, mask in zip(tensors["advantages"], tensors["action_mask"])
    )
    assert trained == pytest.approx(sorted(round(a, 5) for e in expected for a in e), abs=1e-4)


def test_episodes_are_recorded_as_trained(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    fields = {"record": str(path), "eval_seeds": 1}
    _, _, state = play(ECHO, [1_000_000], train=False, **fields)
    state.close()
    (tensors, cu_seqs), episodes, state = play(MOODY, [0, 1, 2, 4], step=3, **fields)
    kept = int(cu_seqs[3])
    tensors = {name: tensor[:kept] for name, tensor in tensors.items()}
    put_advantages(state, tensors, cu_seqs[:4], step=3)  # RL2 filtered the last group
    recorded = list(read_episodes(path))
    assert [e.final_info.get("evaluation", False) for e in recorded] == [True] + [False] * 4
    updates = [e.final_info.get("update") for e in recorded]
    assert updates == [None, 2, 2, 2, None], "trained, then filtered"
    assert recorded[1].final_info["advantages"] == pytest.approx(
        advantages([e for e in episodes if e.seed in {r.seed for r in recorded[1:4]}], "rebn")[0]
    )
    play(ECHO, [0], **{**fields, "record": str(tmp_path / "other.jsonl")})[2].close()
    (untrained,) = read_episodes(tmp_path / "other.jsonl")
    assert "update" not in untrained.final_info, "the end of the run records it"


@pytest.mark.setting("Processes", "works")
def test_environments_run_in_their_own_processes(play: Play) -> None:
    register("test:Where-v0", "rl2_worlds:Where")
    try:
        _, episodes, state = play("test:Where-v0", [0, 1, 2], execution="process")
    finally:
        environments.remove("test:Where-v0")
    assert [e.failure for e in episodes] == [None] * 3
    pids = {turn.info["pid"] for e in episodes for turn in e.turns}
    assert len(pids) == 3 and os.getpid() not in pids
    state.close()
    assert wait_for_exit(pids)


def test_metrics_are_logged_per_environment_and_turn(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, float] = {}
    monkeypatch.setattr("wandb.log", lambda values, step: logged.update(values))
    mixture = f"1*{ECHO} + 1*{MOODY}"
    play(mixture, list(range(8)), train=False)
    (tensors, cu_seqs), episodes, state = play(mixture, list(range(8)))
    put_advantages(state, tensors, cu_seqs)
    for env in (ECHO, MOODY):
        returns = [e.total_reward for e in episodes if e.component == env and not e.failed]
        assert logged[f"gem/env/{env}/return/train"] == pytest.approx(sum(returns) / len(returns))
        assert f"gem/env/{env}/success/test" in logged
        assert f"gem/env/{env}/advantage_abs" in logged
    assert {"gem/turn/0/return/train", "gem/turn/1/advantage_abs"} <= logged.keys()


def test_logged_return_is_the_mean_of_the_episodes(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, float] = {}
    monkeypatch.setattr("wandb.log", lambda values, step: logged.update(values))
    _, episodes, _ = play(ECHO, list(range(9)))
    assert logged["gem/return/train"] == pytest.approx(
        sum(e.total_reward or 0.0 for e in episodes) / 9
    )
    assert logged["scores/train"] == pytest.approx(logged["gem/return/train"])
    assert {"gem/success/train", "gem/turns/train", "gem/failed/train"} <= set(logged)
    assert all(math.isfinite(value) for value in logged.values())


def test_logged_metrics_skip_failed_episodes(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """RL2 logs the metrics that the first episode has, which failed here."""
    logged: dict[str, float] = {}
    monkeypatch.setattr("wandb.log", lambda values, step: logged.update(values))
    _, episodes, _ = play(MOODY, [1, 0, 2])
    assert [e.failed for e in episodes] == [True, False, False]
    assert logged["scores/train"] == pytest.approx(sum(e.total_reward or 0.0 for e in episodes) / 2)
    assert logged["n_turns/train"] == 2
    logged.clear()
    play(MOODY, [1, 3])
    assert logged["gem/failed/train"] == 1.0
    assert "response_length/train" in logged
    assert not {"scores/train", "n_turns/train"} & set(logged)


def test_reports_do_not_mix_training_and_evaluation(
    play: Play, monkeypatch: pytest.MonkeyPatch, batch_ends: list[list[Episode]]
) -> None:
    """RL2's main branch can finish paused training episodes during an evaluation."""
    logged: dict[str, list[float]] = {}
    monkeypatch.setattr(
        "gem_rl2.rollout.gather_and_log", lambda values, step: logged.update(values)
    )
    _, (first, second, *_), state = play(ECHO, [0, 1, 2])
    batch_ends.clear()
    state.finish(first, train=True)
    state.finish(second, train=False)
    state.report(0, "test")
    assert logged["gem/return/test"] == [second.total_reward] and not batch_ends
    state.report(0, "train")
    assert logged["gem/return/train"] == [first.total_reward]
    assert [[e.seed for e in episodes] for episodes in batch_ends] == [[first.seed]]


def test_metrics_file_has_one_line_per_update(
    play: Play, running: tuple[Any, Any], tmp_path_factory: Any
) -> None:
    path = str(tmp_path_factory.mktemp("metrics") / "metrics.jsonl")
    seeds = range(12)  # with few episodes, all returns can be equal
    (tensors, cu_seqs), episodes, state = play(MOODY, list(seeds), metrics=path)
    actor = UnshardedActor(running[0].actor, True)
    with with_gem(state):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
        actor.update(tensors, 1)
    (line,) = read_metrics(path)
    returns = [e.total_reward for e in episodes if not e.failed]
    assert (line["step"], line["episodes"], line["failed"], line["turns"]) == (0, 12, 0.5, 2.0)
    assert line["return"] == pytest.approx(sum(returns) / 6)
    assert line["tokens"] == int(tensors["action_mask"].sum())
    assert math.isfinite(line["loss"])
    assert line["grad_norm"] > 0 and line["advantage_abs"] > 0 and line["seconds"] > 0


def generate(response: dict[str, Any], requests: list[Any] | None = None, **policy: Any) -> Any:
    """Generate one turn with a router that returns `response`."""

    async def ask(ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        if requests is not None:
            requests.append((ids, params))
        return response

    engine = EnginePolicy(ask, {"temperature": 0.5, "stop_token_ids": [9]}, lambda: 3, **policy)
    return asyncio.run(engine.generate([1, 2], Sampling(max_tokens=6)))


def test_generation_stops_at_the_end_token_of_the_chat_template() -> None:
    requests: list[Any] = []
    response = {
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-0.5, 7, None], [-0.1, 4, None]],
        }
    }
    generation = generate(response, requests, turn_end=4)
    ((ids, params),) = requests
    assert ids == [1, 2]
    assert params == {
        "temperature": 0.5,
        "stop_token_ids": [4, 9],
        "max_new_tokens": 6,
        "no_stop_trim": True,
    }
    assert (generation.ids, generation.logprobs) == ((7, 4), (-0.5, -0.1))
    assert generation.finish is FinishReason.STOP
    assert generation.versions == (3, 3)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"finish_reason": {"type": "abort"}}, "aborted a generation"),
        (
            {"finish_reason": {"type": "abort", "status_code": 400, "message": "too long"}},
            "rejected a request.*too long",
        ),
        ({"finish_reason": {"type": "stop"}, "completion_tokens": 3}, "returned no logprob"),
    ],
)
def test_invalid_response_is_an_engine_error(meta: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        generate({"meta_info": meta})
