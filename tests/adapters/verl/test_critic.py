"""The turn-level critic: values are read, bootstrapped and trained at the start of each turn.

The conformance table has the advantages that verl's trainer computes from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gem_conformance import CASES
from test_trainer import Queue

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.adapter_kit.critic import bootstrap_tail
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.policies.tiny import load_tiny
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, StopReason
from gem_verl import GemConfig, batch, critic, trainer
from gem_verl.batch import read_batch
from gem_verl.critic import critic_masks, read_values, training_turn_starts

RAGGED = next(case.episodes for case in CASES if case.name == "ragged turns")
CUT = replace(RAGGED[0], stop=StopReason.TURN_LIMIT, final_observation="You ran out of turns.")


def hand_computed(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[Any]:
    """Return GAE turn by turn; the last value is the one after the end."""
    following, numbers = 0.0, []
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] - values[t]
        following = delta + gamma * lam * following
        numbers.append(following)
    return numbers[::-1]


@pytest.mark.setting("Critic", "works")
def test_values_are_read_before_each_turn_and_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token's value is its index; verl stores the value before each response token."""
    queue = Queue()
    monkeypatch.setattr(batch, "tq", queue)
    for fields in queue.fields.values():
        ids, response = fields["input_ids"], fields["response_mask"]
        first = len(ids) - len(response)
        fields["values"] = torch.arange(first - 1, len(ids) - 1).float()
    played = read_batch(queue.batch)
    values = read_values(queue.batch, played)
    for number, episode in enumerate(played.episodes):
        assert len(values[number]) == len(episode.turns) + 1
        for i in played.places[number]:
            for turn, start, _ in played.sequences[i].spans:
                assert values[number][turn] == start - 1
    masks = critic_masks(queue.batch, played)
    for sequence, mask in zip(played.sequences, masks):
        starts = [
            s - response_start(sequence) for t, s, _ in sequence.spans if t in sequence.trained
        ]
        assert mask.nonzero().flatten().tolist() == starts


def test_returns_are_the_critics_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """V_t + A_t, not whitened, against figures computed by hand."""
    config = GemConfig(
        "game:GuessTheNumber-v0-easy",
        gamma=0.9,
        advantage="gae",
        estimator_kwargs={"lam": 0.8, "whiten": True},
    )
    written: dict[str, Any] = {}
    monkeypatch.setattr(trainer, "put_per_turn", lambda *_, **numbers: written.update(numbers))
    played, values = PlayedBatch([RAGGED[2]], [], []), [0.3] * (len(RAGGED[2].turns) + 1)
    trainer.put_advantages(config, None, played, [[1.0] * len(RAGGED[2].turns)], [values])
    by_hand = hand_computed(list(RAGGED[2].rewards), [*values[:-1], 0.0], 0.9, 0.8)
    assert written["returns"][0] == pytest.approx([0.3 + a for a in by_hand])
    assert written["advantages"] == [[1.0] * len(RAGGED[2].turns)]


def test_critic_gets_its_masks_only_during_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    monkeypatch.setattr(batch, "tq", queue)
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(critic, "put", lambda batch, **fields: written.append(fields))
    played = read_batch(queue.batch)
    with training_turn_starts(queue.batch, played):
        assert len(written) == 1
    before, after = written
    turns = sum(len(sequence.trained) for sequence in played.sequences)
    assert sum(int(mask.sum()) for mask in before["loss_mask"]) == turns
    kept = [fields["response_mask"] for fields in queue.fields.values()]
    assert all(torch.equal(a, b) for a, b in zip(after["response_mask"], kept))


def tail(episode: Episode, max_ids: int = 10_000) -> tuple[int, ...]:
    renderer = Renderer(load_tiny()[1])
    return bootstrap_tail(episode, trained_sequences(episode, 0)[-1], renderer, max_ids)


def test_cut_episode_ends_with_its_next_prompt() -> None:
    renderer, (sequence,) = Renderer(load_tiny()[1]), trained_sequences(CUT, 0)
    ids = tail(CUT)
    text = renderer.tokenizer.decode(list(ids), skip_special_tokens=False)
    assert "You ran out of turns." in text and text.endswith("assistant\n<|im_end|>")
    assert tail(CUT, len(sequence.ids) + 5) == (*ids[:4], renderer.turn_end)
    assert tail(CUT, len(sequence.ids)) == tail(RAGGED[0]) == ()
