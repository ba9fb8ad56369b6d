"""RL2's critic with one value per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import RL2.trainer.ppo as rl2_ppo
import torch
from thinking_template import SHORTENING
from worlds import ECHO

from gem_core.adapter_kit.patching import patched
from gem_core.types import Message, StopReason
from gem_rl2.critic import TARGETS, TurnCritic
from gem_rl2.trainer import patched_trainer
from gem_rl2.unsharded_actor import UnshardedCritic

FIELDS = {
    "advantage": "gae",
    "gamma": 0.9,
    "estimator_kwargs": {"lam": 0.5},
    "horizon": 2,
}


def spans(tensors: Any, row: int) -> list[tuple[int, int]]:
    """Return (start, end) of each turn in a row of RL2's loss mask."""
    mask = [0, *tensors["action_mask"][row].tolist(), 0]
    starts = [i for i in range(len(mask) - 1) if not mask[i] and mask[i + 1]]
    ends = [i for i in range(len(mask) - 1) if mask[i] and not mask[i + 1]]
    return list(zip(starts, ends))


@pytest.mark.setting("Critic", "works")
def test_values_are_read_and_trained_where_turns_begin(
    play: Callable[..., Any], running: tuple[Any, Any]
) -> None:
    # seed 1 terminates after two turns; seed 2 needs a third, so the horizon cuts it
    (tensors, cu_seqs), episodes, state = play(ECHO, [1, 2], **FIELDS)
    assert [e.stop for e in episodes] == [StopReason.TERMINATED, StopReason.TURN_LIMIT]
    config = running[0].critic.copy()
    config.lr = 3e-5  # so small that each step reduces the error
    critic = UnshardedCritic(config)
    critic.model.dropout.p = 0.0
    TurnCritic.replace(critic, state)
    ((cut, state_ids),) = critic._cut_states(tensors).items()
    assert state_ids[: len(episodes[1].prompt_ids(1))] == episodes[1].prompt_ids(1)
    tensors = critic.compute_values(tensors, 1)
    with torch.no_grad():
        ids = torch.tensor([state_ids])
        alone = critic.model(input_ids=ids).logits[0, -1, 0]
    assert state.last_values == {cut: pytest.approx(float(alone), abs=1e-5)}

    ordered = state.ledger.find(tensors)
    with patched_trainer(state, "config raw_tensor_dict cu_seqs step"):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
        for row, (number, episode) in enumerate(ordered.items()):
            turns = spans(tensors, row)
            v = [float(tensors["values"][row, start]) for start, _ in turns]
            r, bootstrap = episode.rewards, 0.9 * state.last_values.get(number, 0.0)
            last = r[1] + bootstrap - v[1]
            by_hand = [r[0] + 0.9 * v[1] - v[0] + 0.45 * last, last]
            for (start, end), a in zip(turns, by_hand):
                got = tensors["advantages"][row, start:end].tolist()
                assert got == pytest.approx([a] * (end - start), abs=1e-5)
            targets = tensors[TARGETS][row].nonzero().flatten().tolist()
            assert targets == [start for start, _ in turns]
            assert tensors["returns"][row, targets].tolist() == pytest.approx(
                [x + a for x, a in zip(v, by_hand)], abs=1e-5
            )
        before = critic_error(tensors)
        for step in range(1, 41):
            critic.update(dict(tensors), step)
    after = critic_error(critic.compute_values(numbered_again(tensors, ordered), 9))
    # the error may be close to 0 from the start
    assert after < max(0.9 * before, 1e-3), "the critic learns its targets"


def test_critic_sees_the_history_as_the_template_writes_it(
    play: Callable[..., Any], running: tuple[Any, Any]
) -> None:
    """Each turn is a sequence, and the critic bootstraps from the next prompt."""
    with patched(running[1].tokenizer, "chat_template", SHORTENING):
        (tensors, cu_seqs), (episode,), state = play(ECHO, [2], history="template", **FIELDS)
        said = [*episode.turns[-1].messages, Message("assistant", episode.turns[-1].action)]
        observation = Message("user", episode.final_observation)
        next_prompt = state.renderer.start([*said, observation])
        critic = UnshardedCritic(running[0].critic)
        TurnCritic.replace(critic, state)
        tensors = critic.compute_values(tensors, 1)
    with torch.no_grad():
        bootstrap = float(critic.model(input_ids=torch.tensor([next_prompt])).logits[0, -1, 0])
    assert list(state.last_values.values()) == [pytest.approx(bootstrap, abs=1e-5)]
    with patched_trainer(state, "config raw_tensor_dict cu_seqs step"):
        rl2_ppo.compute_advantages(None, tensors, cu_seqs, 1)
    ((first, _),), ((second, _),) = spans(tensors, 0), spans(tensors, 1)
    v, r = (
        (float(tensors["values"][0, first]), float(tensors["values"][1, second])),
        episode.rewards,
    )
    last = r[1] + 0.9 * bootstrap - v[1]
    by_hand = [r[0] + 0.9 * v[1] - v[0] + 0.45 * last, last]
    for row, (start, value, advantage) in enumerate(zip((first, second), v, by_hand)):
        assert float(tensors["advantages"][row, start]) == pytest.approx(advantage, abs=1e-5)
        assert float(tensors["returns"][row, start]) == pytest.approx(value + advantage, abs=1e-5)
        assert int(tensors[TARGETS][row].sum()) == 1


def critic_error(tensors: Any) -> float:
    mask = tensors[TARGETS].bool()
    return float((tensors["values"] - tensors["returns"])[mask].pow(2).mean())


def numbered_again(tensors: Any, ordered: dict[int, Any]) -> Any:
    """Return the batch with the episode numbers that `compute_advantages` has removed."""
    numbers = torch.tensor(list(ordered)).unsqueeze(-1).expand(tensors["states"].shape)
    return {**tensors, "gem_number": numbers}
