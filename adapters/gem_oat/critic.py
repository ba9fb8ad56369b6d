"""Critic: oat's critic with one value per turn, read after the last token of the turn's prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import oat.model
import torch

from gem_core.adapter_kit.critic import critic_targets
from gem_core.adapter_kit.patching import patched
from gem_oat.convert import GemTransition, episodes_of

__all__ = ["any_transformers_version", "put_targets", "read_last_token", "value_of"]


@contextmanager
def any_transformers_version() -> Iterator[None]:
    """Let oat load its critic with transformers 5, which reads this attribute of a model.

    A model gets it in `post_init`, which oat's critic does not call. Its output layer is not tied.
    """

    def build(*args: Any) -> Any:
        critic = original(*args)
        critic.all_tied_weights_keys = {}
        return critic

    with patched(oat.model, "build_critic_cls", build) as original:
        yield


def put_targets(
    learner: Any,
    data_list: Sequence[Sequence[GemTransition]],
    played: Sequence[Sequence[GemTransition]],
) -> list[list[float]]:
    """Replace the critic's targets with V_t + A_t by GAE, and return its values.

    The values of cut states are included.
    """
    for transition in (t for transitions in data_list for t in transitions):
        # a target equal to the value trains nothing: for padding transitions and masked turns
        transition.info["returns"] = transition.info["values"] = float(transition.info["values"])
    values = [[t.info["values"] for t in transitions] for transitions in played]
    cut = [number for number, transitions in enumerate(played) if transitions[-1].cut_state]
    # sharded weights need all ranks in each forward pass, so all ranks make the same number
    for i in range(int(learner.strategy.all_reduce(len(cut), op="max"))):
        value = value_of(learner.critic, played[cut[i]][-1].cut_state if i < len(cut) else (0,))
        if i < len(cut):
            values[cut[i]].append(value)
    targets = critic_targets(learner.args.gem, episodes_of(played), values)
    for transitions, numbers in zip(played, targets):
        for transition, number in zip(transitions, numbers):
            if transition.loss_mask:
                transition.info["returns"] = number
    return values


def value_of(critic: Any, ids: Sequence[int]) -> float:
    """Return the critic's value of one state, computed as oat does."""
    state = torch.tensor([list(ids)]).to(torch.cuda.current_device())
    with torch.no_grad():
        return float(critic(input_ids=state, attention_mask=torch.ones_like(state))[0, 0])


def read_last_token(critic: Any) -> None:
    """Make oat read the critic's value at the last token of a state.

    oat 0.2.4 reads it at the first token, `[0, 0]`. In a causal model that token has seen nothing
    of the state, so all states get the same value. oat passes one unpadded state at a time, so the
    last column belongs to the last token.
    """
    critic.register_forward_hook(lambda module, inputs, values: values[:, -1:])
