"""Imitation: what a player said in text, as token ids a model can be taught to say.

    with Rollout(player_named("expert")) as engine:
        played = engine.run_batch(tasks_for("textcraft:TextCraft-v0-depth1", range(256)))
    rows = [view for episode in played for view in token_sequences(tokenised(episode, Renderer(tokenizer)))]

Each view's `mask` marks the tokens of the player's turns. A few updates of cross-entropy on them show a small model the format
of an environment, which training by reward alone may never stumble upon.
"""

from __future__ import annotations

from dataclasses import replace

from gem_core.errors import ConfigError
from gem_core.rollout.renderer import Conversation, Renderer
from gem_core.types import Episode, Sampling, Turn

__all__ = ["tokenised"]


def tokenised(episode: Episode, renderer: Renderer) -> Episode:
    """The episode as if a model had sampled every action: its text, and the token that ends a turn. Without logprobs: nobody
    sampled anything. One that has token ids of its own is refused, since its actions need not be what their text encodes to."""
    if any(turn.action_ids for turn in episode.turns):
        raise ConfigError(
            f"{episode!r} was played with token ids, which are exact; use it as it is"
        )
    conversation = Conversation(renderer)
    end = () if renderer.turn_end is None else (renderer.turn_end,)
    turns: list[Turn] = []
    for turn in episode.turns:
        if not turns:
            added = conversation.begin(turn.messages)
        else:
            added = (
                conversation.rewrite(turn.messages)
                if turn.restarted
                else conversation.say(turn.messages)
            )
        ids = (*renderer.tokenizer.encode(turn.action, add_special_tokens=False), *end)
        conversation.act(ids, turn.action)
        turns.append(
            replace(
                turn,
                added_ids=added.ids,
                restarted=added.restarted,
                action_ids=ids,
                sampling=Sampling(),
                logprobs=None,
            )
        )
    return replace(episode, turns=tuple(turns), trainable=True)
