"""Imitation: a player's words as token ids, in the places where a model would have sampled them."""

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


def test_the_tokens_are_those_of_an_episode_that_a_model_sampled() -> None:
    """A policy that says the same words gives the same ids, turn by turn."""
    renderer = Renderer(ByteTokenizer())
    for episode in played():
        script = ScriptedPolicy([turn.action for turn in episode.turns], renderer.tokenizer)
        with Rollout(script, renderer) as engine:
            (sampled,) = engine.run_batch(tasks_for(GUESS, [episode.seed]))
        taught = tokenised(episode, renderer)
        assert [(t.added_ids, t.restarted, t.action_ids) for t in taught.turns] == [
            (t.added_ids, t.restarted, t.action_ids) for t in sampled.turns
        ]
        assert taught.rewards == sampled.rewards


def test_only_what_the_player_said_is_marked() -> None:
    tokenizer = ByteTokenizer()
    for episode in played():
        (view,) = token_sequences(tokenised(episode, Renderer(tokenizer)))
        assert view.logprobs is None
        for turn, start, end in view.spans:
            assert tokenizer.decode(list(view.ids[start : end - 1])) == episode.turns[turn].action
            assert view.ids[end - 1] == tokenizer.eos_token_id
        assert sum(view.mask) == sum(len(t.action) + 1 for t in episode.turns)


def test_a_rewritten_context_begins_a_new_row() -> None:
    for episode in played("concat"):
        views = token_sequences(tokenised(episode, Renderer(ByteTokenizer())))
        assert len(views) == len(episode.turns)


def test_an_episode_with_ids_of_its_own_is_refused() -> None:
    renderer = Renderer(ByteTokenizer())
    with Rollout(ScriptedPolicy(lambda _: "\\boxed{5}", renderer.tokenizer), renderer) as engine:
        (episode,) = engine.run_batch(tasks_for(GUESS, [1]))
    with pytest.raises(ConfigError, match="exact"):
        tokenised(episode, renderer)
