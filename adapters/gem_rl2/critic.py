"""Critic: RL2's critic with one value per turn, read and trained where the turn begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from gem_core.adapter_kit.critic import cut_state
from gem_rl2.rollout import RolloutState

if TYPE_CHECKING:
    from RL2.workers.critic import Critic as _Base
else:
    _Base = object

__all__ = ["TARGETS", "TurnCritic"]

TARGETS = "gem_targets"
"""The tensor that marks the positions with a target for the critic."""


class TurnCritic(_Base):
    """What gem adds to RL2's critic. The first rank holds the batch; the others pass None."""

    state: RolloutState

    @classmethod
    def replace(cls, critic: Any, state: RolloutState) -> None:
        """Make RL2's critic one of gem's. RL2 looks for the class name to save checkpoints."""
        critic.__class__ = type("Critic", (cls, type(critic)), {})
        critic.state = state

    def compute_values(self, tensor_dict: Any, step: int) -> Any:
        """Add the values of all positions to the batch, and keep those of cut episodes' ends.

        RL2 itself sets the values of masked turns to 0; `gae` passes through them.
        """
        states: dict[int, tuple[int, ...]] = {}
        rows = None
        if dist.get_rank() == 0:
            states = self._cut_states(tensor_dict)
            rows = _with_states(tensor_dict, list(states.values()))
        result = super().compute_values(rows, step)
        if dist.get_rank() == 0:
            count, length = tensor_dict["states"].shape
            tensor_dict["values"] = result["values"][:count, :length]
            ends = result["values"][count:]
            self.state.last_values = {
                number: float(row[len(state) - 1])
                for (number, state), row in zip(states.items(), ends)
            }
        return tensor_dict

    def update(self, tensor_dict: Any, step: int) -> None:
        """Train as RL2 does, with a loss mask that has the positions with a target."""
        if dist.get_rank() == 0:
            mask = tensor_dict[TARGETS]
            values = tensor_dict["values"] * mask
            tensor_dict = {**tensor_dict, "action_mask": mask, "values": values}
        super().update(tensor_dict, step)

    def _cut_states(self, batch: Any) -> dict[int, tuple[int, ...]]:
        """Return the next prompt of each cut episode in the batch, by its number."""
        renderer, longest = self.state.renderer, self.state.max_context
        if renderer is None:  # recorded episodes, which all ended by themselves
            return {}
        states = {
            number: cut_state(episode, renderer, longest)
            for number, episode in self.state.ledger.find(batch).items()
        }
        return {number: state for number, state in states.items() if state}


def _with_states(batch: Any, states: list[tuple[int, ...]]) -> dict[str, Any]:
    """Return the critic's input: the sequences of a batch, then further states, all unmasked."""
    further = [torch.tensor(state) for state in states]
    ends = [torch.zeros_like(state) for state in further]
    for end in ends:
        end[-1] = 1
    positions = [torch.arange(len(state)) for state in further]
    eos_mask = pad_sequence([*batch["eos_mask"], *ends], True)
    return {
        "states": pad_sequence([*batch["states"], *further], True),
        "eos_mask": eos_mask,
        "position_ids": pad_sequence([*batch["position_ids"], *positions], True),
        "action_mask": eos_mask.flip(-1).cumsum(-1).flip(-1),
    }
