"""Tokens: the rows of an episode, and rewards that give back every turn's return."""

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
    return [(row.ids, row.turn_of) for row in token_sequences(episode(*turns))]


def test_turns_that_extend_each_other_share_a_row() -> None:
    assert layout(turn((1, 2), (3, 4), restarted=True), turn((5,), (6,)), turn((7, 8), (9,))) == [
        ((1, 2, 3, 4, 5, 6, 7, 8, 9), (-1, -1, 0, 0, -1, 1, -1, -1, 2)),
    ]


def test_a_rewritten_context_starts_a_new_row() -> None:
    assert layout(
        turn((1,), (2,), restarted=True),
        turn((3,), (4,)),
        turn((1, 5), (6,), restarted=True),
        turn((7,), (8,)),
    ) == [
        ((1, 2, 3, 4), (-1, 0, -1, 1)),
        ((1, 5, 6, 7, 8), (-1, -1, 2, -1, 3)),
    ]


def test_two_turns_with_nothing_between_them_do_not_share_a_row() -> None:
    """Else nothing would say where one turn's credit ends. What was sampled before is context in the new row."""
    assert layout(turn((1,), (2, 3), restarted=True), turn((), (4,)), turn((5,), (6,))) == [
        ((1, 2, 3), (-1, 0, 0)),
        ((1, 2, 3, 4, 5, 6), (-1, -1, -1, 1, -1, 2)),
    ]


def test_a_turn_without_tokens_is_context_only() -> None:
    assert layout(turn((1,), (2,)), turn((3,), (), status=TurnStatus.MASKED), turn((4,), (5,))) == [
        ((1, 2, 3, 4, 5), (-1, 0, -1, -1, 2)),
    ]
    assert layout(turn((1,), (2,)), turn((3,), (), status=TurnStatus.MASKED)) == [
        ((1, 2), (-1, 0))
    ], "nothing behind the last action"
    assert layout(turn((1,), ())) == []
    assert layout() == []


def test_a_masked_turn_keeps_its_tokens_and_is_not_trained() -> None:
    (row,) = token_sequences(
        episode(turn((1,), (2, 3)), turn((4,), (5,), status=TurnStatus.MASKED), turn((6,), (7,)))
    )
    assert row.turn_of == (-1, 0, 0, -1, 1, -1, 2)
    assert row.mask == (0, 1, 1, 0, 0, 0, 1)
    assert row.trained == {0, 2}
    assert row.broadcast([0.5, 9.0, -1.0]) == [0.0, 0.5, 0.5, 0.0, 0.0, 0.0, -1.0]
    assert row.spans == ((0, 1, 3), (1, 4, 5), (2, 6, 7))
    assert row.prompt_length == 1


@pytest.mark.parametrize("stop", [s for s in StopReason if s.failed])
def test_a_failed_episode_has_no_rows(stop: StopReason) -> None:
    assert (
        token_sequences(episode(turn(), turn(reward=None, status=TurnStatus.FAILED), stop=stop))
        == []
    )


def test_logprobs_stand_beside_their_ids() -> None:
    (row,) = token_sequences(episode(turn((1, 1), (2, 3)), turn((1,), (4,))))
    assert row.logprobs == (0.0, 0.0, -0.2, -0.3, 0.0, -0.4)


def test_logprobs_that_are_missing_are_missing_for_their_row_only() -> None:
    rows = token_sequences(
        episode(
            turn((1,), (2,)),
            turn((1,), (3,), logprobs=False),
            turn((1,), (4,)),
            turn((5,), (6,), restarted=True),
        )
    )
    assert [row.logprobs for row in rows] == [None, (0.0, -0.6)]
    (row,) = token_sequences(episode(turn((1,), (), logprobs=False), turn((1,), (4,))))
    assert row.logprobs == (0.0, 0.0, -0.4), "a turn without tokens needs none"


def test_text_without_ids_cannot_be_trained() -> None:
    with pytest.raises(NotTrainableError, match="text-only"):
        token_sequences(Episode("test:Env", 1, (turn(),), StopReason.TERMINATED, trainable=False))


def test_a_placeholder_trains_nothing() -> None:
    row = padding_sequence([1, 2], 7)
    assert (row.ids, row.turn_of, row.mask, row.logprobs) == (
        (1, 2, 7),
        (-1, -1, -1),
        (0, 0, 0),
        (0.0, 0.0, 0.0),
    )
    assert channel_rewards(episode(), row, 0.9) == [0.0, 0.0, 0.0]
    assert row.prompt_length == 3


def test_prompts_are_rebuilt_from_what_each_turn_added() -> None:
    played = episode(
        turn((1,), (2,), restarted=True),
        turn((3,), (4,)),
        turn((5, 6), (7,), restarted=True),
        turn((8,), (9,)),
    )
    assert [played.prompt_ids(t) for t in range(4)] == [(1,), (1, 2, 3), (5, 6), (5, 6, 7, 8)]
    for wrong in (-1, 4):
        with pytest.raises(IndexError):
            played.prompt_ids(wrong)


def test_returns_are_discounted_from_the_last_turn_back() -> None:
    # G_2 = 4, G_1 = 2 + 0.5 * 4 = 4, G_0 = 1 + 0.5 * 4 = 3
    assert discounted_returns([1.0, 2.0, 4.0], 0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([], 0.5) == []
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="gamma"):
            discounted_returns([1.0], gamma)


def test_channel_rewards_are_the_rewards_in_the_plain_case() -> None:
    played = episode(turn((1,), (2, 3), 0.25), turn((1,), (4,), 0.0), turn((1,), (5, 6), 2.0))
    (row,) = token_sequences(played)
    assert channel_rewards(played, row, 0.9) == pytest.approx(
        [0, 0, 0.25, 0, 0.0, 0, 0, 2.0], abs=1e-15
    )


def test_the_reward_of_a_masked_turn_reaches_the_turn_before_it() -> None:
    played = episode(
        turn((1,), (2,), 1.0),
        turn((1,), (3,), 4.0, status=TurnStatus.MASKED),
        turn((1,), (4,), 8.0),
    )
    (row,) = token_sequences(played)
    # G = 1 + 0.5 * (4 + 0.5 * 8) = 5, 8, 8; trained are turns 0 and 2: 5 - 0.5 * 8 = 1 and 8
    assert channel_rewards(played, row, 0.5) == [0, 1.0, 0, 0, 0, 8.0]


turns = st.builds(
    turn,
    added=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    action=st.lists(st.integers(4, 9), max_size=3).map(tuple),
    reward=st.floats(-10, 10),
    restarted=st.booleans(),
    status=st.sampled_from([TurnStatus.VALID, TurnStatus.MASKED]),
)


def in_row_recursion(row: TokenSequence, rewards: list[float], gamma: float) -> dict[int, float]:
    """What a framework computes: over the trained turns of one row, from the last back."""
    found: dict[int, float] = {}
    following = 0.0
    for number, start, end in reversed(row.spans):
        if number in row.trained:
            following = sum(rewards[start:end]) + gamma * following
            found[number] = following
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8), st.floats(0, 1))
def test_a_frameworks_recursion_gives_back_every_return(played: list[Turn], gamma: float) -> None:
    """Invariant 3 through the reward channel, under masked turns, empty turns and split rows; and no token that is not
    trained carries a reward."""
    whole = episode(*played)
    returns = discounted_returns(whole.rewards, gamma)
    found: dict[int, float] = {}
    for row in token_sequences(whole):
        rewards = channel_rewards(whole, row, gamma)
        assert len(rewards) == len(row.ids)
        assert all(r == 0.0 for r, m in zip(rewards, row.mask) if not m)
        found.update(in_row_recursion(row, rewards, gamma))
    trained = [
        t for t, one in enumerate(played) if one.status is TurnStatus.VALID and one.action_ids
    ]
    assert sorted(found) == trained
    assert [found[t] for t in trained] == pytest.approx([returns[t] for t in trained], abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8))
def test_rows_hold_every_sampled_token_once_and_in_order(played: list[Turn]) -> None:
    whole = episode(*played)
    sampled: list[tuple[int, int]] = []
    for row in token_sequences(whole):
        assert row.turn_of[-1] >= 0
        assert row.logprobs is not None
        assert len(row.ids) == len(row.turn_of) == len(row.logprobs)
        assert all((p == 0.0) == (t < 0) for p, t in zip(row.logprobs, row.turn_of))
        for number, start, end in row.spans:
            assert start == 0 or row.turn_of[start - 1] == -1, (
                "a token nobody sampled stands between two turns"
            )
            assert row.ids[:start] == whole.prompt_ids(number)
            sampled += [(number, id) for id in row.ids[start:end]]
    assert sampled == [(number, id) for number, one in enumerate(played) for id in one.action_ids]


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, max_size=8).filter(lambda played: all(t.action_ids for t in played)))
def test_no_reward_is_lost_or_made_up(played: list[Turn]) -> None:
    """Invariant 2: without masked turns, what stands on trained tokens of one row sums to what the environment paid."""
    one_row = [turn(t.added_ids or (1,), t.action_ids, t.reward) for t in played]
    whole = episode(*one_row)
    paid = sum(
        sum(r * m for r, m in zip(channel_rewards(whole, row, 1.0), row.mask))
        for row in token_sequences(whole)
    )
    assert paid == pytest.approx(sum(whole.rewards), abs=1e-9)
