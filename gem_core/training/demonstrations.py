"""Demonstrations: episodes of a baseline player as token sequences for SFT.

    with Rollout(player_named("expert")) as engine:
        played = engine.run_batch(tasks_for("textcraft:TextCraft-v0-depth1", range(256)))
    renderer = Renderer(tokenizer)
    sequences = [s for episode in played for s in token_sequences(tokenised(episode, renderer))]

The `mask` of each sequence marks the player's tokens. A few SFT updates on them teach a small
model the action format, which RL alone may never discover.
"""

from __future__ import annotations

from dataclasses import replace

from gem_core.errors import ConfigError
from gem_core.rollout.renderer import Conversation, Renderer
from gem_core.types import Episode, Sampling, Turn

__all__ = ["tokenised"]


def tokenised(episode: Episode, renderer: Renderer) -> Episode:
    """Return the episode with the ids of each action's text and a turn-end token, without logprobs.

    Raises `ConfigError` for an episode that has token ids: encoding their text may give others.
    """
    if any(turn.action_ids for turn in episode.turns):
        raise ConfigError(f"{episode!r} already has exact token ids; use it unchanged")
    conversation = Conversation(renderer)
    end = () if renderer.turn_end is None else (renderer.turn_end,)
    turns: list[Turn] = []
    for turn in episode.turns:
        if not turns:
            added = conversation.begin(turn.messages)
        else:
            extend = conversation.rewrite if turn.restarted else conversation.say
            added = extend(turn.messages)
        ids = (*renderer.tokenizer.encode(turn.action, add_special_tokens=False), *end)
        conversation.act(ids, turn.action)
        turns.append(
            replace(
                turn,
                messages=added.messages,
                added_ids=added.ids,
                restarted=added.restarted,
                action_ids=ids,
                sampling=Sampling(),
                logprobs=None,
            )
        )
    return replace(episode, turns=tuple(turns), trainable=True)
