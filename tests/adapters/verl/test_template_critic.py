"""verl's sequences with a critic, if the chat template rewrites earlier turns."""

from __future__ import annotations

import copy

from thinking_template import STRIPPING

from gem_core.adapter_kit.batch import trained_sequences
from gem_core.adapter_kit.critic import bootstrap_tail, cut_state
from gem_core.policies.tiny import load_tiny
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, Message, StopReason, Turn
from gem_verl.convert import to_batch


def test_last_sequence_ends_with_the_observation_from_which_the_critic_bootstraps() -> None:
    """The critic reads values inside sequences, so the last turn keeps its thinking."""
    tokenizer = copy.deepcopy(load_tiny()[1])
    tokenizer.chat_template = STRIPPING
    renderer = Renderer(tokenizer, mode="template")
    messages, turns = [Message("user", "hello")], []
    for number in range(2):
        text, prompt = f"<think>{number}</think>{number}", renderer.start(messages)
        ids = (*tokenizer.encode(text, add_special_tokens=False), renderer.turn_end or 0)
        turns.append(Turn(tuple(messages), text, 0.5, prompt, True, ids, (-1.0,) * len(ids)))
        messages += [Message("assistant", text), Message("user", f"more {number}")]
    cut = Episode("e", 0, tuple(turns), StopReason.TURN_LIMIT, final_observation="more 1")
    assert cut_state(cut, renderer) == renderer.start(messages)

    last = trained_sequences(cut, 0)[-1]
    tail = bootstrap_tail(cut, last, renderer, 4096)
    first, second = to_batch(cut, 0, tail)
    assert "more" not in tokenizer.decode(first["prompt_ids"] + first["response_ids"])
    text = tokenizer.decode(second["prompt_ids"] + second["response_ids"])
    assert text.count("<think>") == 1 and text.index("<think>1") < text.index("more 1")
    untrained = second["response_mask"][len(turns[1].action_ids) :]
    assert len(untrained) == len(tail) and not any(untrained)
