"""Episodes through RL2's real rollout, its server's HTTP interface and the real router: the rows are what was sampled."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import RL2.trainer.ppo as rl2_ppo
import RL2.workers.rollout as rl2_rollout
import torch
from conftest import Fickle

from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.tiny import load_tiny
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_views
from gem_core.types import Episode, FinishReason, Sampling
from gem_rl2.advantage import gem_advantages
from gem_rl2.interface import replaced
from gem_rl2.ledger import RowsLostError
from gem_rl2.plain import PlainActor
from gem_rl2.rollout import Gate, RouterPolicy

ECHO = "test:Echo-v0"
RL2_S_OWN = ("states", "eos_mask", "position_ids", "actions", "action_mask", "llm_logps", "rewards")

Play = Callable[..., Any]


def rows_in(batch: tuple[Any, Any]) -> list[list[tuple[list[int], list[int], list[float]]]]:
    """(ids, mask, logprobs) of each row of each trajectory."""
    tensors, cu_seqs = batch
    lengths = (tensors["eos_mask"].argmax(-1) + 1).tolist()
    found = []
    for start, end in zip(cu_seqs.tolist(), cu_seqs.tolist()[1:]):
        found.append([])
        for i in range(start, end):
            cut = {k: v[i, : lengths[i]].tolist() for k, v in tensors.items()}
            found[-1].append(([*cut["states"], cut["actions"][-1]], [0, *cut["action_mask"]], [0.0, *cut["llm_logps"]]))
    return found


def logprobs_of(model: Any, ids: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float()
    return [0.0, *logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()]


def same_rows(batch: tuple[Any, Any], episodes: list[Episode]) -> None:
    found = rows_in(batch)
    assert len(found) == len(episodes)
    for rows, episode in zip(found, episodes):
        views = token_views(episode)
        assert [row[0] for row in rows] == [list(view.ids) for view in views]
        assert [row[1] for row in rows] == [list(view.mask) for view in views]
        for row, view in zip(rows, views):
            assert row[2] == pytest.approx([p * m for p, m in zip(view.logprobs or (), view.mask)], abs=1e-6)


def test_rows_are_what_was_sampled_token_by_token(play: Play) -> None:
    batch, episodes, _ = play(ECHO, list(range(12)))
    assert {len(e.turns) for e in episodes} == {1, 2, 3}
    assert [e.seed for e in episodes] == list(range(12))
    same_rows(batch, episodes)
    model, _ = load_tiny()
    for rows in rows_in(batch):
        for ids, mask, logprobs in rows:
            again = [p * m for p, m in zip(logprobs_of(model, ids), mask)]
            assert logprobs == pytest.approx(again, abs=1e-3), "the server's logprobs are not the model's of these very ids"


def test_rewards_stand_on_turn_ends(play: Play) -> None:
    (tensors, _), episodes, _ = play(ECHO, [2, 5, 8])
    for row, episode in enumerate(episodes):
        (view,) = token_views(episode)
        paid = [0.0] * len(view.ids)
        for turn, _, end in view.spans:
            paid[end - 1] = episode.rewards[turn]
        assert tensors["rewards"][row, : len(paid) - 1].tolist() == pytest.approx(paid[1:])


def test_a_rewritten_history_becomes_several_rows_of_one_trajectory(play: Play) -> None:
    batch, episodes, _ = play(ECHO, [2, 5, 8], wrappers="concat_chat(window=1)")
    assert [len(rows) for rows in rows_in(batch)] == [len(token_views(e)) for e in episodes]
    assert max(len(token_views(e)) for e in episodes) > 1
    same_rows(batch, episodes)


def test_advantages_are_the_core_s(play: Play) -> None:
    (tensors, cu_seqs), episodes, plays = play(ECHO, list(range(8)), gamma=0.9)
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    for row, (episode, numbers) in enumerate(zip(episodes, advantages(episodes, "rebn", gamma=0.9))):
        (view,) = token_views(episode)
        expected = view.spread(numbers)[1:]
        assert tensors["advantages"][row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-6)
        assert not tensors["advantages"][row, len(expected) :].any()
    assert len(plays.ledger) == 0


def test_a_crash_costs_its_own_episode_only(play: Play) -> None:
    (tensors, cu_seqs), episodes, plays = play("test:Moody-v0", [0, 1, 2, 3])
    assert [e.failed for e in episodes] == [False, True, False, True]
    assert tensors["action_mask"].sum(-1).bool().tolist() == [True, False, True, False]
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    assert not tensors["advantages"][[1, 3]].any()


def test_a_batch_of_nothing_but_failed_episodes_leaves_the_weights_finite(play: Play, running: tuple[Any, Any]) -> None:
    (tensors, cu_seqs), episodes, plays = play("test:Moody-v0", [1, 3])
    assert all(e.failed for e in episodes)
    actor = PlainActor(running[0].actor, True)
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
        actor.update(tensors, 1)
    assert all(torch.isfinite(p).all() for p in actor.model.parameters())


def test_without_the_guard_rl2_would_lose_the_model(play: Play, running: tuple[Any, Any]) -> None:
    """Why `count_total` is replaced; where this fails, RL2 has mended it and the replacement can go."""
    (tensors, cu_seqs), _, plays = play("test:Moody-v0", [1, 3])
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    actor = PlainActor(running[0].actor, True)
    actor.update(tensors, 1)
    assert any(torch.isnan(p).any() for p in actor.model.parameters())


def test_groups_that_rl2_filters_out_are_no_hindrance(play: Play, running: tuple[Any, Any]) -> None:
    """`dynamic_filtering` drops groups of equal returns between rollout and advantages; the others keep their credit."""
    config = running[1].config
    config.responses_per_prompt, config.dynamic_filtering = 2, True
    try:
        seeds = [seed for seed in range(0, 36, 3) for _ in range(2)]
        (tensors, cu_seqs), episodes, plays = play(ECHO, seeds, advantage="grpo")
    finally:
        config.responses_per_prompt = 1
    pairs = list(zip(episodes[::2], episodes[1::2]))
    kept = [e for pair in pairs if pair[0].total_reward != pytest.approx(pair[1].total_reward) for e in pair]
    assert 0 < len(kept) < len(episodes)
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    expected = {view.ids: numbers[0] for e, numbers in zip(kept, advantages(kept, "grpo")) for view in token_views(e)}
    assert len(tensors["states"]) == len(kept)
    for row, ((ids, _, _),) in enumerate(rows_in((tensors, cu_seqs))):
        trained = tensors["advantages"][row][tensors["action_mask"][row].bool()]
        assert trained.tolist() == pytest.approx([expected[tuple(ids)]] * len(trained), abs=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "rebn"])
@pytest.mark.parametrize("again", [False, True], ids=["at once", "after RL2's own logprobs"])
def test_equal_rows_of_other_groups_are_not_mistaken(play: Play, running: tuple[Any, Any], estimator: str, again: bool) -> None:
    """Everybody is asked the same and says the same, and is paid by what no row shows: the start. RL2 drops the odd ones, where
    nobody is paid, and packs, deals out and gathers the others."""
    Fickle.paid.clear()
    config = running[1].config
    config.responses_per_prompt, config.dynamic_filtering = 2, True

    async def same(*args: Any) -> Any:
        return {"meta_info": {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 5, None]]}}

    try:
        with replaced(rl2_rollout, "async_generate", same):
            (tensors, cu_seqs), episodes, plays = play("test:Fickle-v0", [1, 1, 2, 2, 3, 3, 4, 4], advantage=estimator)
    finally:
        config.responses_per_prompt = 1
    assert len({view.ids for e in episodes for view in token_views(e)}) == 1
    if again:
        tensors = PlainActor(running[0].actor, True).compute_logps(tensors, 1)
    with gem_advantages(plays):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    paid = tensors["rewards"].sum(-1).tolist()
    assert sorted(paid[:2]) == sorted(paid[2:]) == [0.0, 1.0]
    assert tensors["advantages"].sum(-1).tolist() == pytest.approx([1.0 if p else -1.0 for p in paid], abs=1e-4)
    assert set(tensors) <= {*RL2_S_OWN, "advantages", "old_logps"}, "the loss is given what it knows"
    assert len(plays.ledger) == 0


@pytest.mark.parametrize("name", ["states", "action_mask"])
def test_a_batch_changed_on_the_way_stops_training(play: Play, name: str) -> None:
    (tensors, cu_seqs), _, plays = play(ECHO, [0, 1, 2])
    tensors[name] = tensors[name].roll(1, dims=1)
    with gem_advantages(plays), pytest.raises(RowsLostError, match="none that was played"):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)


def test_a_batch_that_lost_its_numbers_stops_training(play: Play) -> None:
    (tensors, cu_seqs), _, plays = play(ECHO, [0, 1, 2])
    del tensors["gem_number"]
    with gem_advantages(plays), pytest.raises(RowsLostError, match="no 'gem_number'"):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)


def test_rows_of_two_episodes_are_no_trajectory(play: Play) -> None:
    (tensors, cu_seqs), _, plays = play(ECHO, [0, 1, 2])
    with gem_advantages(plays), pytest.raises(RowsLostError, match="none that was played"):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs[[0, 2, 3]], 1)


def test_a_slow_environment_holds_up_its_own_episode_only(play: Play) -> None:
    began = time.monotonic()
    _, episodes, _ = play("test:Slow-v0", [0, *range(2, 10)])
    assert episodes[0].seconds >= 2.0
    assert max(e.seconds for e in episodes[1:]) < 2.0
    assert time.monotonic() - began < 30


def test_the_horizon_grows_with_rl2_s_step(play: Play) -> None:
    turns = [max(len(e.turns) for e in play(ECHO, [2, 5], step=step, horizon="1,2,3@1")[1]) for step in (1, 2, 3)]
    assert turns == [1, 2, 3]


def test_no_row_outgrows_what_rl2_takes(play: Play, running: tuple[Any, Any]) -> None:
    running[1].plays.max_context, before = 64, running[1].plays.max_context
    try:
        (tensors, _), episodes, _ = play(ECHO, [2, 5, 8], max_turn_tokens=64)
    finally:
        running[1].plays.max_context = before
    assert tensors["states"].shape[1] <= 64
    assert {e.stop.value for e in episodes} & {"context_full"}


def test_evaluation_is_not_credited(play: Play) -> None:
    found, episodes, plays = play(ECHO, [0, 1, 2], train=False)
    assert found is None
    assert len(episodes) == 3
    assert len(plays.ledger) == 0


def test_the_servers_sample_from_the_weights_they_were_sent(play: Play, running: tuple[Any, Any]) -> None:
    config, rollout = running
    actor = PlainActor(config.actor, True)
    before = {n: p.detach().clone() for n, p in actor.model.named_parameters()}
    with torch.no_grad():
        for p in actor.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    try:
        rollout.update(actor, 1)
        batch, _, _ = play(ECHO, [0, 1, 2, 3])
        actor.model.eval()
        for rows in rows_in(batch):
            for ids, mask, logprobs in rows:
                assert logprobs == pytest.approx([p * m for p, m in zip(logprobs_of(actor.model, ids), mask)], abs=1e-3)
    finally:
        with torch.no_grad():
            for n, p in actor.model.named_parameters():
                p.copy_(before[n])
        rollout.update(actor, 1)


def test_an_error_of_the_servers_ends_the_run(play: Play) -> None:
    async def refusing(*args: Any) -> Any:
        return {"error": {"message": "out of memory"}}

    with replaced(rl2_rollout, "async_generate", refusing), pytest.raises(PolicyError, match="out of memory"):
        play(ECHO, [0, 1])


def test_servers_that_failed_once_are_asked_again(play: Play) -> None:
    ask, calls = rl2_rollout.async_generate, []

    async def hiccup(*args: Any) -> Any:
        calls.append(args)
        return {"error": {"message": "a hiccup"}} if len(calls) == 1 else await ask(*args)

    with replaced(rl2_rollout, "async_generate", hiccup):
        _, episodes, _ = play(ECHO, [0, 1], retries=1)
    assert not any(e.failed for e in episodes)


def test_a_row_without_a_start_is_refused(running: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="carries no gem task"):
        running[1]([{"extra_info": {}}], True, 1)


def test_metrics_show_the_true_return(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, float] = {}
    monkeypatch.setattr("wandb.log", lambda values, step: logged.update(values))
    _, episodes, _ = play(ECHO, list(range(9)))
    assert logged["gem/return/train"] == pytest.approx(sum(e.total_reward or 0.0 for e in episodes) / 9)
    assert logged["scores/train"] == pytest.approx(logged["gem/return/train"])
    assert {"gem/success/train", "gem/turns/train", "gem/failed/train"} <= set(logged)
    assert all(math.isfinite(value) for value in logged.values())


def test_rl2_s_own_metrics_do_not_depend_on_which_episode_came_first(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, float] = {}
    monkeypatch.setattr("wandb.log", lambda values, step: logged.update(values))
    _, episodes, _ = play("test:Moody-v0", [1, 0, 2])
    assert [e.failed for e in episodes] == [True, False, False]
    assert logged["scores/train"] == pytest.approx(sum(e.total_reward or 0.0 for e in episodes) / 2)
    assert logged["n_turns/train"] == 2
    logged.clear()
    play("test:Moody-v0", [1, 3])
    assert logged["gem/failed/train"] == 1.0
    assert {"response_length/train"} <= set(logged) and not {"scores/train", "n_turns/train"} & set(logged)


def test_a_paused_turn_goes_on_with_the_tokens_it_has() -> None:
    """What RL2's main branch does for partial rollouts: an abort with some tokens, or none, and later the rest."""
    asked: list[tuple[list[int], int]] = []
    answers = [([7, 8], "abort"), ([], "abort"), ([9, 2], "stop")]

    async def ask(ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        asked.append((list(ids), params["max_new_tokens"]))
        new, why = answers[len(asked) - 1]
        meta: dict[str, Any] = {"finish_reason": {"type": why}, "output_token_logprobs": [[-0.5, i, None] for i in new]}
        return {"text": "", "meta_info": meta}

    async def run() -> Any:
        step, gate = [0], Gate()
        turn = asyncio.ensure_future(RouterPolicy(ask, {}, gate, lambda: step[0]).generate([1, 1], Sampling(max_tokens=6)))
        for number in (1, 2):
            await gate.closed()
            assert len(asked) == number and not turn.done(), "nothing may be asked of paused servers"
            step[0] = number
            gate.open()
        return await turn

    found = asyncio.run(run())
    assert asked == [([1, 1], 6), ([1, 1, 7, 8], 4), ([1, 1, 7, 8], 4)]
    assert (found.ids, found.finish, found.versions) == ((7, 8, 9, 2), FinishReason.STOP, (0, 2))


def test_an_abort_that_nobody_asked_for_ends_the_run() -> None:
    async def ask(ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        return {"meta_info": {"finish_reason": {"type": "abort"}}}

    with pytest.raises(PolicyError, match="nobody had paused"):
        asyncio.run(RouterPolicy(ask, {}, None, lambda: 0).generate([1], Sampling(max_tokens=6)))
