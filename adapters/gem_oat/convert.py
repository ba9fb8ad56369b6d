"""Convert: episodes in oat's own format, and numbers per turn as numbers per token.

oat trains on transitions, one per turn, in batches of an exact size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oat.types import Transition

from gem_core.adapter_kit.critic import cut_state
from gem_core.errors import NotTrainableError
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason

__all__ = [
    "GemTransition",
    "actor_info",
    "episodes_of",
    "per_token",
    "size_of",
    "to_batch",
    "tokens_played",
]


@dataclass
class GemTransition(Transition):
    """One turn in oat's format, with its episode and the number of the turn."""

    episode: Episode | None = None
    """None in padding that fills a batch. The padding of a failed episode has it, for metrics."""
    turn: int = -1
    """The number of the turn; -1 in a padding transition."""
    cut_state: tuple[int, ...] = ()
    """The next prompt, on the last turn of a cut episode: the critic bootstraps from it."""

    @property
    def padding(self) -> bool:
        """Whether this is a padding transition, which is not trained and in no statistic."""
        return self.turn < 0


def to_batch(
    episodes: Iterable[Episode],
    size: int,
    renderer: Renderer,
    *,
    with_critic: bool,
    max_ids: int | None = None,
) -> list[list[GemTransition]]:
    """Convert episodes to oat's transitions, and add padding transitions up to `size`.

    `max_ids`: the context of the critic.
    """
    end = renderer.turn_end or 0
    batch = [
        _transitions(episode, end, cut_state(episode, renderer, max_ids) if with_critic else ())
        for episode in episodes
    ]
    room = size - sum(map(len, batch))
    return [*batch, [_padding(end) for _ in range(room)]] if room else batch


def per_token(transition: GemTransition, per_turn: Sequence[float]) -> float:
    """Return the number of a transition's turn. oat broadcasts it to the response tokens.

    A transition that is not trained gets 0.
    """
    return per_turn[transition.turn] if transition.loss_mask else 0.0


def tokens_played(transition: GemTransition) -> tuple[list[int], list[int], list[int]]:
    """Return (prompt, response, loss mask of both) of the played turn; empty for padding."""
    if transition.episode is None or transition.padding:
        return [], [], []
    episode, turn = transition.episode, transition.turn
    prompt, action = list(episode.prompt_ids(turn)), list(episode.turns[turn].action_ids)
    return prompt, action, [0] * len(prompt) + [int(episode.trained(turn))] * len(action)


def episodes_of(batch: Iterable[Sequence[GemTransition]]) -> list[Episode]:
    """Return the episodes of a batch, failed ones included."""
    return [
        transitions[0].episode
        for transitions in batch
        if transitions and transitions[0].episode is not None
    ]


def size_of(episode: Episode) -> int:
    """Return the number of transitions of an episode: at least 1, also for a failed episode."""
    return 1 if episode.failed else max(1, len(episode.turns))


def actor_info(
    episodes: Sequence[Episode], batch: Sequence[Sequence[GemTransition]]
) -> dict[str, float]:
    """Return oat's own statistics of a batch, without padding transitions."""
    turns = [t for transitions in batch for t in transitions if not t.padding]
    metrics = BatchMetrics.of(episodes)
    info: dict[str, float] = {}
    if turns:
        info["actor/num_transitions"] = float(len(turns))
        info["actor/avg_reward"] = sum(t.rewards for t in turns) / len(turns)
        info["actor/response_tok_len"] = sum(len(t.response_ids) for t in turns) / len(turns)
        info["actor/generate_avg_str_len"] = sum(len(t.response) for t in turns) / len(turns)
    if metrics.finished:
        info["actor/mean_episode_len"] = metrics.turns / metrics.finished
        info["actor/mean_episode_return"] = metrics.returns / metrics.finished
    if metrics.judged:
        info["actor/mean_episode_success"] = metrics.successes / metrics.finished
    return info


def _transitions(
    episode: Episode, end_id: int, next_prompt: tuple[int, ...]
) -> list[GemTransition]:
    """Return one transition per turn, also for masked turns: rewards flow through all turns.

    A turn in which nothing was sampled gets one masked end token: oat rejects an empty response.
    """
    if episode.failed or not episode.turns:
        return [_padding(end_id, episode)]
    transitions = []
    for number, turn in enumerate(episode.turns):
        if turn.action_ids and turn.logprobs is None:
            raise NotTrainableError(
                f"turn {number} of the episode of {episode.env_id} with seed {episode.seed} has no "
                "logprobs, and oat needs one for each sampled token; use a policy that returns them"
            )
        last = number == len(episode.turns) - 1
        observation = "\n".join(message.content for message in turn.messages)
        transitions.append(
            GemTransition(
                obs=observation,
                action=turn.action,
                rewards=float(turn.reward or 0.0),
                done=last,
                prompt=observation,
                prompt_ids=list(episode.prompt_ids(number)),
                response=turn.action,
                response_ids=list(turn.action_ids) or [end_id],
                response_logprobs=list(turn.logprobs or ()) or [0.0],
                response_is_truncated=turn.finish is FinishReason.LENGTH,
                action_is_formatted=True,  # the environment judges the format
                loss_mask=episode.trained(number),
                info={},
                episode=episode,
                turn=number,
                cut_state=next_prompt if last else (),
            )
        )
    return transitions


def _padding(end_id: int, episode: Episode | None = None) -> GemTransition:
    """Return a padding transition: two end tokens, masked."""
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
        episode=episode,
    )
