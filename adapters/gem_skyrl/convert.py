"""Convert: episodes as the output of a SkyRL generator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.adapter_kit.critic import bootstrap_tail
from gem_core.training.sequences import channel_rewards
from gem_core.types import Episode

__all__ = ["PLAYED", "to_batch"]

PLAYED = "gem_played"
"""The key of (episode, sequence) pairs in a batch. SkyRL passes on lists that it does not know."""


def to_batch(
    episodes: Sequence[Episode], trajectory_ids: Sequence[Any], generator: Any
) -> dict[str, Any]:
    """Return the `GeneratorOutput` of a `GemGenerator`; an episode's sequences are its steps."""
    output = defaultdict[str, list[Any]](list)
    config, renderer, max_ids = generator.config, generator.renderer, generator.max_context
    for episode, trajectory_id in zip(episodes, trajectory_ids):
        sequences = trained_sequences(episode, renderer.turn_end or 0, values=config.needs_values)
        for sequence in sequences:
            start, last = response_start(sequence), sequence is sequences[-1]
            bootstraps = last and config.needs_values  # from the state after the last turn
            tail = bootstrap_tail(episode, sequence, renderer, max_ids) if bootstraps else ()
            zeros, rewards = [0] * len(tail), channel_rewards(episode, sequence, config.gamma)
            output["prompt_token_ids"].append(list(sequence.ids[:start]))
            output["response_ids"].append([*sequence.ids[start:], *tail])  # all after one prompt
            output["loss_masks"].append([*sequence.mask[start:], *zeros])
            output["rewards"].append([*rewards[start:], *zeros])
            output["rollout_logprobs"].append([*(sequence.logprobs or ())[start:], *zeros])
            output["stop_reasons"].append(episode.stop.value)
            output["trajectory_ids"].append(trajectory_id)
            output["is_last_step"].append(last)
            output[PLAYED].append((episode, sequence))
    return {**output, "rollout_metrics": None}
