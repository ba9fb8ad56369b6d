"""Advantage: gem's estimators in place of OpenRLHF's, one number per action token.

OpenRLHF computes advantages in one process for all ranks, in `RemoteExperienceMaker.compute_advantages_and_returns`, and offers
no registry for others. So that one method is overridden, in a subclass that `gem_openrlhf.trainer` puts in the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from gem_core.errors import ConfigError, GemError
from gem_core.training.metrics import BatchMetrics, advantage_sizes
from gem_core.training.sequences import discounted_returns
from gem_core.types import Episode
from gem_openrlhf.config import GemConfig
from gem_openrlhf.convert import Played, spread

__all__ = ["GemExperienceMaker", "MaskLostError"]


class MaskLostError(GemError, RuntimeError):
    """Raised when what OpenRLHF hands to its loss is not what was played: a mask, or ids, went missing on the way."""


class GemExperienceMaker(RemoteExperienceMaker):  # type: ignore[misc]
    """OpenRLHF's experience maker with per-turn advantages by the estimator of the `GemConfig` that was played."""

    metrics: dict[str, float] | None = None
    """How the last batch went."""

    def make_experience(self, samples_list: list[Any]) -> list[Any]:
        """OpenRLHF's own, whose mean over the tokens of a row is NaN for a row that has none to train."""
        experiences: list[Any] = super().make_experience(samples_list)
        for experience in experiences:
            empty = ~experience.action_mask.bool().any(dim=-1)
            for name in ("kl", "logprobs_diff"):
                experience.info[name] = experience.info[name].masked_fill(empty, 0.0)
        return experiences

    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Takes the episodes out of the labels, and credits their turns."""
        played = [found for experience in experiences for found in experience.labels]
        spec = spec_of(played)
        for experience in experiences:
            check_rows(experience)
        credit = spec.credit([found.episode for found in played])
        per_turn = iter(credit)
        for experience in experiences:
            rows = [found.row for found in experience.labels]
            episodes = [found.episode for found in experience.labels]
            experience.advantages = _tensor(experience, [spread(row, next(per_turn)) for row in rows])
            experience.returns = _tensor(experience, [spread(row, _returns(e, spec.gamma)) for row, e in zip(rows, episodes)])
            experience.info["return"] = torch.tensor([float(e.total_reward or 0.0) for e in episodes])
            experience.labels = [found.label for found in experience.labels]
            experience.kl = None  # as OpenRLHF's own does: it was for the reward
        self.metrics = _metrics(experiences, [found.episode for found in played], credit)
        return experiences


def spec_of(played: Sequence[Any]) -> GemConfig:
    """The one spec a batch is credited by."""
    for found in played:
        if not isinstance(found, Played):
            raise ConfigError(
                "a sample was not played by gem, so that its turns are not known; point --train.agent_func_path to "
                f"gem_openrlhf's agent.py, or a file that imports GemAgentExecutor as AgentExecutor. Label: {str(found)[:80]!r}"
            )
    specs: list[GemConfig] = [found.spec for found in played]
    ways = {(s.advantage, s.gamma, str(sorted(s.estimator_kwargs.items()))) for s in specs}
    if len(ways) > 1:
        raise ConfigError(f"the data sets disagree on how turns are credited: {sorted(ways)}; write them all with one of these")
    return specs[0]


def check_rows(experience: Any) -> None:
    """What goes into the loss must be what was played: the ids, and the mask that keeps unsampled tokens out."""
    width = experience.action_mask.shape[1]
    for found, ids, mask in zip(experience.labels, experience.sequences.tolist(), experience.action_mask.long().tolist()):
        played, trained = list(found.row.ids), list(found.row.mask[1:])
        if ids[: len(played)] != played or mask != trained + [0] * (width - len(trained)):
            raise MaskLostError(
                f"a row of OpenRLHF's batch is not what was played with seed {found.episode.seed}: its ids or its mask were "
                f"changed on the way to the loss, which would train on {sum(mask)} tokens where {sum(trained)} were sampled"
            )


def _tensor(experience: Any, rows: Sequence[Sequence[float]]) -> Any:
    found = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
    for i, row in enumerate(rows):
        found[i, : len(row)] = torch.tensor(row, dtype=torch.float32)
    return found


def _returns(episode: Episode, gamma: float) -> list[float]:
    return [0.0] * len(episode.turns) if episode.failed else discounted_returns(episode.rewards, gamma)


def _metrics(experiences: Sequence[Any], episodes: Sequence[Episode], credit: Sequence[Sequence[float]]) -> dict[str, float]:
    found = {f"gem/{name}": value for name, value in BatchMetrics.of(episodes).means().items()}
    found["gem/tokens"] = float(sum(e.action_mask.sum() for e in experiences))
    trained = advantage_sizes(episodes, credit)
    found["gem/advantage_abs"] = sum(trained) / len(trained) if trained else 0.0
    return found
