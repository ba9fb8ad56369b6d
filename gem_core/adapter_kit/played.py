"""Played batch: the sequences of a trainer's batch, and the episodes that they are from.

For trainers whose batches have a prompt and a response per sequence. `response_start` separates
the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from gem_core.adapter_kit.batch import check_sequence, response_start
from gem_core.adapter_kit.critic import critic_targets, value_positions
from gem_core.training.config import TrainingConfig
from gem_core.training.sequences import TokenSequence, discounted_returns
from gem_core.types import Episode

__all__ = ["PlayedBatch"]


@dataclass(frozen=True)
class PlayedBatch:
    """Sequences in the order of the batch."""

    episodes: list[Episode]
    sequences: list[TokenSequence]
    episode_of: list[int]
    """The index of each sequence's episode; -1 for the trainer's padding sequences."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[Episode, TokenSequence]]) -> PlayedBatch:
        """Create the batch from pairs, those of one episode next to each other.

        Equal episodes are two if they are different objects.
        """
        episodes: list[Episode] = []
        sequences, episode_of = [], []
        for episode, sequence in pairs:
            if not episodes or episodes[-1] is not episode:
                episodes.append(episode)
            sequences.append(sequence)
            episode_of.append(len(episodes) - 1)
        return cls(episodes, sequences, episode_of)

    @cached_property
    def places(self) -> list[list[int]]:
        """The indices of each episode's sequences, in the order of its turns."""
        places: list[list[int]] = [[] for _ in self.episodes]
        for i, number in enumerate(self.episode_of):
            if number >= 0:
                places[number].append(i)
        for own in places:
            own.sort(key=lambda i: min((t for t, _, _ in self.sequences[i].spans), default=0))
        return places

    def check_sequence(
        self, i: int, ids: Sequence[int], mask: Sequence[float], where: str = ""
    ) -> None:
        """Raise `BatchMismatchError` unless the batch's sequence i is the played one.

        `mask`: the loss mask of its response. Sequences after the played ones are the trainer's
        padding. Padding must not be trained, whatever its ids are.
        """
        own = self.sequences[i] if i < len(self.sequences) else None
        expected = (own.ids, own.mask) if own and own.trained else (ids, [0] * len(ids))
        full = [0] * (len(ids) - len(mask)) + [int(m) for m in mask]
        check_sequence(where or f"sequence {i} of the trainer's batch", ids, full, *expected)

    def per_token(self, per_turn: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return one number per response token of each sequence: its turn's, 0 if not trained."""
        numbers = [per_turn[n] if n >= 0 else () for n in self.episode_of]
        return [s.broadcast(n)[response_start(s) :] for s, n in zip(self.sequences, numbers)]

    def returns(
        self, config: TrainingConfig, values: Sequence[Sequence[float]] | None = None
    ) -> list[list[float]]:
        """Return the return of each turn; with a critic's `values`, the target of the critic."""
        if values is not None:
            return critic_targets(config, self.episodes, values)
        return [discounted_returns(episode.rewards, config.gamma) for episode in self.episodes]

    def values(self, of_tokens: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return the critic's values of each episode: one per turn, then the one after its end.

        `of_tokens`: the value of each response token, which is that of the state before the token,
        for each sequence with its `bootstrap_tail`.
        """
        values: list[list[float]] = []
        for episode, own in zip(self.episodes, self.places):
            if episode.failed or not episode.turns:
                values.append([])
                continue
            sequences = [self.sequences[i] for i in own]
            of_turns = [
                of_tokens[own[s]][max(i + 1 - response_start(sequences[s]), 0)]
                for s, i in value_positions(episode, sequences)
            ]
            values.append([*of_turns, of_tokens[own[-1]][-1]])
        return values

    def critic_masks(self) -> list[list[int]]:
        """Return the critic's loss masks: 1 on the first response token of each trained turn.

        Its value is that of the state in which the turn begins.
        """
        masks = []
        for sequence in self.sequences:
            start = response_start(sequence)
            mask = [0] * (len(sequence.ids) - start)
            firsts = {turn: first for turn, first, _ in reversed(sequence.spans)}
            for turn in sequence.trained:
                mask[firsts[turn] - start] = 1
            masks.append(mask)
        return masks
