"""Demonstrations: a player's actions as token ids, as if a model had sampled them."""

from __future__ import annotations

import pytest
from byte_tokenizer import ByteTokenizer

from gem_core import (
    RandomPlayer,
    Renderer,
    Rollout,
    ScriptedPolicy,
    run_batch,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError
from gem_core.training.demonstrations import tokenised

GUESS = "game:GuessTheNumber-v0-easy"


def played(wrappers: str = "") -> list:
    return run_batch(tasks_for(GUESS, range(6), wrappers=wrappers), RandomPlayer())


def test_tokenised_ids_equal_those_of_a_sampled_episode() -> None:
    """A policy that generates the same actions gives the same ids, turn by turn."""
    renderer = Renderer(ByteTokenizer())
    for episode in played():
        script = ScriptedPolicy([turn.action for turn in episode.turns], renderer.tokenizer)
        with Rollout(script, renderer) as engine:
            (sampled,) = engine.run_batch(tasks_for(GUESS, [episode.seed]))
        demonstration = tokenised(episode, renderer)
        assert [(t.added_ids, t.restarted, t.action_ids) for t in demonstration.turns] == [
            (t.added_ids, t.restarted, t.action_ids) for t in sampled.turns
        ]
        assert demonstration.rewards == sampled.rewards


def test_the_mask_marks_only_the_players_tokens() -> None:
    tokenizer = ByteTokenizer()
    for episode in played():
        (sequence,) = token_sequences(tokenised(episode, Renderer(tokenizer)))
        assert sequence.logprobs is None
        for turn, start, end in sequence.spans:
            assert (
                tokenizer.decode(list(sequence.ids[start : end - 1])) == episode.turns[turn].action
            )
            assert sequence.ids[end - 1] == tokenizer.eos_token_id
        assert sum(sequence.mask) == sum(len(t.action) + 1 for t in episode.turns)


def test_a_rewritten_context_starts_a_new_sequence() -> None:
    for episode in played("concat"):
        sequences = token_sequences(tokenised(episode, Renderer(ByteTokenizer())))
        assert len(sequences) == len(episode.turns)


def test_tokenised_rejects_an_episode_with_token_ids() -> None:
    renderer = Renderer(ByteTokenizer())
    with Rollout(ScriptedPolicy(lambda _: "\\boxed{5}", renderer.tokenizer), renderer) as engine:
        (episode,) = engine.run_batch(tasks_for(GUESS, [1]))
    with pytest.raises(ConfigError, match="exact"):
        tokenised(episode, renderer)
