"""Token sequences of an episode, and token rewards that recover every turn's return."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import Episode, StopReason, TokenSequence, Turn, TurnStatus, token_sequences
from gem_core.errors import ConfigError, NotTrainableError
from gem_core.training.sequences import channel_rewards, discounted_returns, padding_sequence


def turn(
    added: tuple[int, ...] = (1,),
    action: tuple[int, ...] = (9,),
    reward: float | None = 0.0,
    *,
    restarted: bool = False,
    status: TurnStatus = TurnStatus.VALID,
    logprobs: bool = True,
) -> Turn:
    return Turn(
        (),
        "",
        reward,
        added,
        restarted,
        action,
        tuple(-i / 10 for i in action) if logprobs else None,
        status,
    )


def episode(*turns: Turn, stop: StopReason = StopReason.TERMINATED) -> Episode:
    return Episode("test:Env", 1, turns, stop)


def layout(*turns: Turn) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(sequence.ids, sequence.turn_of) for sequence in token_sequences(episode(*turns))]


def test_turns_that_extend_the_prompt_share_a_sequence() -> None:
    assert layout(turn((1, 2), (3, 4), restarted=True), turn((5,), (6,)), turn((7, 8), (9,))) == [
        ((1, 2, 3, 4, 5, 6, 7, 8, 9), (-1, -1, 0, 0, -1, 1, -1, -1, 2)),
    ]


def test_a_rewritten_context_starts_a_new_sequence() -> None:
    assert layout(
        turn((1,), (2,), restarted=True),
        turn((3,), (4,)),
        turn((1, 5), (6,), restarted=True),
        turn((7,), (8,)),
    ) == [
        ((1, 2, 3, 4), (-1, 0, -1, 1)),
        ((1, 5, 6, 7, 8), (-1, -1, 2, -1, 3)),
    ]


def test_adjacent_turns_do_not_share_a_sequence() -> None:
    """Earlier sampled tokens are context in the new sequence, where two turns stay separable."""
    assert layout(turn((1,), (2, 3), restarted=True), turn((), (4,)), turn((5,), (6,))) == [
        ((1, 2, 3), (-1, 0, 0)),
        ((1, 2, 3, 4, 5, 6), (-1, -1, -1, 1, -1, 2)),
    ]


def test_a_turn_without_sampled_tokens_is_only_context() -> None:
    assert layout(turn((1,), (2,)), turn((3,), (), status=TurnStatus.MASKED), turn((4,), (5,))) == [
        ((1, 2, 3, 4, 5), (-1, 0, -1, -1, 2)),
    ]
    assert layout(turn((1,), (2,)), turn((3,), (), status=TurnStatus.MASKED)) == [
        ((1, 2), (-1, 0))
    ], "the sequence ends with the last action"
    assert layout(turn((1,), ())) == []
    assert layout() == []


def test_a_masked_turn_keeps_its_tokens_and_is_not_trained() -> None:
    (sequence,) = token_sequences(
        episode(turn((1,), (2, 3)), turn((4,), (5,), status=TurnStatus.MASKED), turn((6,), (7,)))
    )
    assert sequence.turn_of == (-1, 0, 0, -1, 1, -1, 2)
    assert sequence.mask == (0, 1, 1, 0, 0, 0, 1)
    assert sequence.trained == {0, 2}
    assert sequence.broadcast([0.5, 9.0, -1.0]) == [0.0, 0.5, 0.5, 0.0, 0.0, 0.0, -1.0]
    assert sequence.spans == ((0, 1, 3), (1, 4, 5), (2, 6, 7))
    assert sequence.prompt_length == 1


@pytest.mark.parametrize("stop", [s for s in StopReason if s.failed])
def test_a_failed_episode_has_no_sequences(stop: StopReason) -> None:
    assert (
        token_sequences(episode(turn(), turn(reward=None, status=TurnStatus.FAILED), stop=stop))
        == []
    )


def test_logprobs_are_aligned_with_ids() -> None:
    (sequence,) = token_sequences(episode(turn((1, 1), (2, 3)), turn((1,), (4,))))
    assert sequence.logprobs == (0.0, 0.0, -0.2, -0.3, 0.0, -0.4)


def test_missing_logprobs_affect_only_their_sequence() -> None:
    sequences = token_sequences(
        episode(
            turn((1,), (2,)),
            turn((1,), (3,), logprobs=False),
            turn((1,), (4,)),
            turn((5,), (6,), restarted=True),
        )
    )
    assert [sequence.logprobs for sequence in sequences] == [None, (0.0, -0.6)]
    (sequence,) = token_sequences(episode(turn((1,), (), logprobs=False), turn((1,), (4,))))
    assert sequence.logprobs == (0.0, 0.0, -0.4), "a turn without tokens needs no logprobs"


def test_an_episode_without_ids_is_not_trainable() -> None:
    with pytest.raises(NotTrainableError, match="text-only"):
        token_sequences(Episode("test:Env", 1, (turn(),), StopReason.TERMINATED, trainable=False))


def test_a_padding_sequence_trains_nothing() -> None:
    sequence = padding_sequence([1, 2], 7)
    assert (sequence.ids, sequence.turn_of, sequence.mask, sequence.logprobs) == (
        (1, 2, 7),
        (-1, -1, -1),
        (0, 0, 0),
        (0.0, 0.0, 0.0),
    )
    assert channel_rewards(episode(), sequence, 0.9) == [0.0, 0.0, 0.0]
    assert sequence.prompt_length == 3


def test_prompt_ids_are_rebuilt_from_added_ids() -> None:
    played = episode(
        turn((1,), (2,), restarted=True),
        turn((3,), (4,)),
        turn((5, 6), (7,), restarted=True),
        turn((8,), (9,)),
    )
    assert [played.prompt_ids(t) for t in range(4)] == [(1,), (1, 2, 3), (5, 6), (5, 6, 7, 8)]
    for turn_number in (-1, 4):
        with pytest.raises(IndexError):
            played.prompt_ids(turn_number)


def test_discounted_returns_equal_hand_computed_values() -> None:
    # G_2 = 4, G_1 = 2 + 0.5 * 4 = 4, G_0 = 1 + 0.5 * 4 = 3
    assert discounted_returns([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([], 0.5) == []
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="gamma"):
            discounted_returns([1.0], gamma)


def test_channel_rewards_are_the_rewards_without_masked_turns() -> None:
    played = episode(turn((1,), (2, 3), 0.25), turn((1,), (4,), 0.0), turn((1,), (5, 6), 2.0))
    (sequence,) = token_sequences(played)
    assert channel_rewards(played, sequence, 0.9) == pytest.approx(
        [0, 0, 0.25, 0, 0.0, 0, 0, 2.0], abs=1e-15
    )


def test_the_reward_of_a_masked_turn_reaches_the_previous_turn() -> None:
    played = episode(
        turn((1,), (2,), 1.0),
        turn((1,), (3,), 4.0, status=TurnStatus.MASKED),
        turn((1,), (4,), 8.0),
    )
    (sequence,) = token_sequences(played)
    # G = 1 + 0.5 * (4 + 0.5 * 8) = 5, 8, 8; turns 0 and 2 are trained: 5 - 0.5 * 8 = 1 and 8
    assert channel_rewards(played, sequence, 0.5) == [0, 1.0, 0, 0, 0, 8.0]


turns = st.builds(
    turn,
    added=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    action=st.lists(st.integers(4, 9), max_size=3).map(tuple),
    reward=st.floats(-10, 10),
    restarted=st.booleans(),
    status=st.sampled_from([TurnStatus.VALID, TurnStatus.MASKED]),
)


def framework_recursion(
    sequence: TokenSequence, rewards: list[float], gamma: float
) -> dict[int, float]:
    """The returns that a framework computes over the trained turns of one sequence."""
    recovered: dict[int, float] = {}
    following = 0.0
    for number, start, end in reversed(sequence.spans):
        if number in sequence.trained:
            following = sum(rewards[start:end]) + gamma * following
            recovered[number] = following
    return recovered


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8), st.floats(0, 1))
def test_the_frameworks_recursion_recovers_every_return(played: list[Turn], gamma: float) -> None:
    """Invariant 3 through channel rewards, with masked and empty turns and several sequences.

    Untrained tokens have no reward.
    """
    full_episode = episode(*played)
    returns = discounted_returns(full_episode.rewards, gamma)
    recovered: dict[int, float] = {}
    for sequence in token_sequences(full_episode):
        rewards = channel_rewards(full_episode, sequence, gamma)
        assert len(rewards) == len(sequence.ids)
        assert all(r == 0.0 for r, m in zip(rewards, sequence.mask) if not m)
        recovered.update(framework_recursion(sequence, rewards, gamma))
    trained = [
        t for t, one in enumerate(played) if one.status is TurnStatus.VALID and one.action_ids
    ]
    assert sorted(recovered) == trained
    assert [recovered[t] for t in trained] == pytest.approx([returns[t] for t in trained], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8))
def test_sequences_contain_every_sampled_token_once_in_order(played: list[Turn]) -> None:
    full_episode = episode(*played)
    sampled: list[tuple[int, int]] = []
    for sequence in token_sequences(full_episode):
        assert sequence.turn_of[-1] >= 0
        assert sequence.logprobs is not None
        assert len(sequence.ids) == len(sequence.turn_of) == len(sequence.logprobs)
        assert all((p == 0.0) == (t < 0) for p, t in zip(sequence.logprobs, sequence.turn_of))
        for number, start, end in sequence.spans:
            assert start == 0 or sequence.turn_of[start - 1] == -1, (
                "an unsampled token separates two turns"
            )
            assert sequence.ids[:start] == full_episode.prompt_ids(number)
            sampled += [(number, id) for id in sequence.ids[start:end]]
    assert sampled == [(number, id) for number, one in enumerate(played) for id in one.action_ids]


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8).filter(lambda played: all(t.action_ids for t in played)))
def test_channel_rewards_sum_to_the_environments_rewards(played: list[Turn]) -> None:
    """Invariant 2: without masked turns, the rewards of trained tokens sum to the environment's."""
    unmasked = [turn(t.added_ids or (1,), t.action_ids, t.reward) for t in played]
    full_episode = episode(*unmasked)
    paid = sum(
        sum(r * m for r, m in zip(channel_rewards(full_episode, sequence, 1.0), sequence.mask))
        for sequence in token_sequences(full_episode)
    )
    assert paid == pytest.approx(sum(full_episode.rewards), abs=1e-9)
