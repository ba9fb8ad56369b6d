"""One value per turn from a critic that has one value per token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from byte_tokenizer import ByteTokenizer

import gem_oat
from gem_core import Episode, Renderer, StopReason, Turn, TurnStatus
from gem_core.adapter_kit.critic import critic_targets, cut_state, value_positions
from gem_core.training.config import TrainingConfig
from gem_core.training.sequences import token_sequences


@dataclass
class Config(TrainingConfig):
    adapter = gem_oat.ADAPTER


def turn(added: int, sampled: int, reward: float, restarted: bool = False) -> Turn:
    return Turn((), "a", reward, tuple(range(added)), restarted, (9,) * sampled, (-0.5,) * sampled)


TURNS = (turn(4, 2, 0.0, True), turn(3, 1, 0.5), turn(2, 3, 1.0))
CUT = Episode("e", 0, TURNS, StopReason.TURN_LIMIT, final_observation="Next?")


def test_value_is_read_after_the_last_token_before_each_turn() -> None:
    # tokens: 4 of the prompt, 2 sampled, 3 observed, 1 sampled, 2 observed, 3 sampled
    assert value_positions(CUT, token_sequences(CUT)) == [(0, 3), (0, 8), (0, 11)]


def test_each_sequence_has_positions_of_its_own() -> None:
    rewritten = replace(CUT, turns=(TURNS[0], turn(5, 1, 0.5, True), TURNS[2]))
    assert value_positions(rewritten, token_sequences(rewritten)) == [(0, 3), (1, 4), (1, 7)]


def test_turn_without_tokens_uses_the_next_position() -> None:
    empty = replace(turn(3, 0, 0.5), status=TurnStatus.MASKED, logprobs=())
    between = replace(CUT, turns=(TURNS[0], empty, TURNS[2]))
    assert value_positions(between, token_sequences(between)) == [(0, 3), (0, 10), (0, 10)]
    last = replace(CUT, turns=(TURNS[0], TURNS[1], empty))
    assert value_positions(last, token_sequences(last)) == [(0, 3), (0, 8), (0, 8)]


def test_cut_state_is_the_next_prompt() -> None:
    renderer = Renderer(ByteTokenizer())
    state = cut_state(CUT, renderer)
    played = token_sequences(CUT)[0].ids
    assert state[: len(played)] == played
    text = renderer.tokenizer.decode(list(state[len(played) :]), skip_special_tokens=False)
    assert "user\nNext?" in text and text.endswith("assistant\n")
    assert cut_state(replace(CUT, stop=StopReason.TERMINATED), renderer) == ()
    assert cut_state(replace(CUT, stop=StopReason.ENV_ERROR), renderer) == ()


def test_targets_are_value_plus_advantage_also_if_advantages_are_whitened() -> None:
    config = Config(
        "game:GuessTheNumber-v0-easy",
        advantage="gae",
        gamma=0.5,
        estimator_kwargs={"lam": 0.5, "whiten": True},
    )
    # by hand: δ = (0 + 0.1 - 0.4, 0.5 + 0.3 - 0.2, 1 + 0.4 - 0.6) = (-0.3, 0.6, 0.8)
    # A = (-0.3 + 0.25 · 0.8, 0.6 + 0.25 · 0.8, 0.8) = (-0.1, 0.8, 0.8)
    (targets,) = critic_targets(config, [CUT], [[0.4, 0.2, 0.6, 0.8]])
    assert targets == pytest.approx([0.3, 1.0, 1.4])
