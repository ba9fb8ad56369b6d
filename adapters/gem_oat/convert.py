"""Convert: episodes to the transitions oat trains on, one per turn, in batches of exactly the size oat asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from oat.types import Transition

from gem_core.errors import ConfigError, NotTrainableError
from gem_core.types import Episode, FinishReason

__all__ = ["FinishedGroups", "GemTransition", "filler", "size_of", "to_transitions"]


@dataclass
class GemTransition(Transition):
    """One turn as oat takes it, and which turn of which episode it is."""

    episode: Episode | None = None
    """None where it stands for no turn and only fills up a batch."""
    turn: int = -1
    cut_state: tuple[int, ...] = ()
    """The prompt that would have come next, on the last turn of an episode that was cut: a critic bootstraps from it."""


def to_transitions(episode: Episode, end_id: int, cut_state: Sequence[int] = ()) -> list[GemTransition]:
    """One per turn, whether it is trained or not, since rewards flow through all of them; a filler for a failed episode.

    A turn in which nothing was sampled gets one end token, untrained: oat cannot take an empty response.
    """
    if episode.failed or not episode.turns:
        return [filler(end_id)]
    found = []
    for number, turn in enumerate(episode.turns):
        if turn.action_ids and turn.logprobs is None:
            raise NotTrainableError(
                f"turn {number} of the episode of {episode.env_id} with seed {episode.seed} has no logprobs, and oat needs them "
                "of every sampled token; sample with a policy that gives them"
            )
        last = number == len(episode.turns) - 1
        said = "\n".join(message.content for message in turn.messages)
        found.append(
            GemTransition(
                obs=said,
                action=turn.action,
                rewards=float(turn.reward or 0.0),
                done=last,
                prompt=said,
                prompt_ids=list(episode.prompt_ids(number)),
                response=turn.action,
                response_ids=list(turn.action_ids) or [end_id],
                response_logprobs=list(turn.logprobs or ()) or [0.0],
                response_is_truncated=turn.finish is FinishReason.LENGTH,
                action_is_formatted=True,  # what an action must look like is the environment's business
                loss_mask=episode.trained(number),
                info={},
                episode=episode,
                turn=number,
                cut_state=tuple(cut_state) if last and not episode.terminated else (),
            )
        )
    return found


def filler(end_id: int) -> GemTransition:
    """A transition of two end tokens with nothing to train, outside every statistic."""
    return GemTransition(
        obs="",
        action="",
        rewards=0.0,
        done=True,
        prompt="",
        prompt_ids=[end_id],
        response="",
        response_ids=[end_id],
        response_logprobs=[0.0],
        response_is_truncated=False,
        action_is_formatted=True,
        loss_mask=False,
        info={},
    )


def size_of(episode: Episode) -> int:
    """How many transitions an episode becomes; one at least, so that a batch of nothing but failed episodes is full some time."""
    return 1 if episode.failed else max(1, len(episode.turns))


class FinishedGroups:
    """Finished episodes, kept until all of their group are there and a batch has room for them.

    First in, first out, and a group that does not fit goes first into the next batch: no episode is thrown away, whatever its
    length.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._begun: dict[int, list[Episode]] = {}
        self._whole: deque[list[Episode]] = deque()
        self.waiting = 0
        """The transitions of all groups that are whole."""

    def add(self, episode: Episode) -> None:
        """Takes in an episode; `samples` neighbouring indices are one group."""
        number = episode.index // self.samples
        group = self._begun.setdefault(number, [])
        group.append(episode)
        if len(group) == self.samples:
            self._whole.append(sorted(self._begun.pop(number), key=lambda e: e.index))
            self.waiting += sum(map(size_of, group))

    def take(self, room: int) -> list[Episode]:
        """The episodes of one batch: as many groups as fit into `room` transitions."""
        found: list[Episode] = []
        while self._whole:
            size = sum(map(size_of, self._whole[0]))
            if size > room:
                break
            found += self._whole.popleft()
            room -= size
            self.waiting -= size
        if not found and self._whole:
            group = self._whole[0]
            raise ConfigError(
                f"{len(group)} episode(s) of {group[0].env_id} with seed {group[0].seed} have {sum(map(size_of, group))} turns, "
                f"and a batch holds {room}; raise rollout_batch_size_per_device, or lower the horizon or the samples per start"
            )
        return found
