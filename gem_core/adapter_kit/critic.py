"""Critic: where to read and train a critic that has one value per token, for one value per turn.

The value of a turn is the critic's value of the state in which the turn begins: its value after the
last token before the turn's first sampled one.
"""

from __future__ import annotations

from collections.abc import Sequence

from gem_core.errors import RenderError
from gem_core.rollout.renderer import Renderer, message_of
from gem_core.training.advantage import advantages
from gem_core.training.config import TrainingConfig
from gem_core.training.sequences import TokenSequence
from gem_core.types import Episode, Message

__all__ = ["bootstrap_tail", "critic_targets", "cut_state", "value_positions"]


def value_positions(episode: Episode, sequences: Sequence[TokenSequence]) -> list[tuple[int, int]]:
    """Return (number of the sequence, index of the token) after which each turn's value is read.

    A turn in which nothing was sampled has no tokens of its own and uses the position of the next
    turn. It is not trained.
    """
    own: dict[int, tuple[int, int]] = {}
    for number, sequence in enumerate(sequences):
        for turn, start, _ in sequence.spans:
            own.setdefault(turn, (number, start - 1))
    following = len(sequences) - 1, len(sequences[-1].ids) - 2
    positions = []
    for turn in reversed(range(len(episode.turns))):
        following = own.get(turn, following)
        positions.append(following)
    return positions[::-1]


def cut_state(episode: Episode, renderer: Renderer, max_ids: int | None = None) -> tuple[int, ...]:
    """Return the prompt after the last turn of an episode that did not terminate; otherwise ().

    `gae` bootstraps from its value. It has at most `max_ids` ids. Wrappers that rewrite the history
    are not applied to it.
    """
    if episode.failed or episode.terminated or not episode.turns:
        return ()
    try:
        if renderer.mode == "template" and renderer.chat:
            state = renderer.start([*_conversation(episode), _next_message(episode)])
        else:
            state = _appended(episode, renderer)
    except Exception:  # noqa: BLE001 - templates reject messages with any exception
        last = len(episode.turns) - 1
        state = (*episode.prompt_ids(last), *episode.turns[last].action_ids)
    return state[:max_ids]


def bootstrap_tail(
    episode: Episode, last: TokenSequence, renderer: Renderer, max_ids: int
) -> tuple[int, ...]:
    """Return the ids that follow the last sequence of an episode, for its bootstrap value.

    They are the rest of its next prompt and one token more, for trainers that drop the value after
    the last token; sequence and tail have at most `max_ids` ids. If the next prompt rewrites the
    last turn, for example without its thinking, the tail follows the turn as it was sampled. Empty
    if the episode terminated, failed or fills the context.
    """
    state, known = cut_state(episode, renderer), len(last.ids)
    if state and state[:known] != last.ids:
        try:
            state = _appended(episode, renderer)
        except RenderError:  # in template mode, a template may not allow to append a message
            return ()
    room = max_ids - known - 1
    if room < 1 or state[:known] != last.ids:
        return ()
    return (*state[known : known + room], renderer.turn_end or 0)


def _appended(episode: Episode, renderer: Renderer) -> tuple[int, ...]:
    """Return the last prompt and action, as they are, and the observation after them."""
    last = len(episode.turns) - 1
    action = episode.turns[last].action_ids
    return (*episode.prompt_ids(last), *action, *renderer.bridge([_next_message(episode)], action))


def _next_message(episode: Episode) -> Message:
    return message_of(episode.final_observation, episode.final_info)


def _conversation(episode: Episode) -> list[Message]:
    """Return the messages of an episode, from the last prompt that was written anew."""
    messages: list[Message] = []
    for turn in reversed(episode.turns):
        messages[:0] = [*turn.messages, Message("assistant", turn.action)]
        if turn.restarted:
            break
    return messages


def critic_targets(
    config: TrainingConfig, episodes: Sequence[Episode], values: Sequence[Sequence[float]]
) -> list[list[float]]:
    """Return the critic's target for each turn: V_t + A_t, with A_t by GAE, not whitened."""
    lam = {k: v for k, v in config.estimator_kwargs.items() if k == "lam"}
    per_turn = advantages(episodes, "gae", gamma=config.gamma, values=values, **lam)
    return [[v + a for v, a in zip(known, numbers)] for known, numbers in zip(values, per_turn)]
