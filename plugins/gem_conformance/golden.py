"""Golden episodes: small batches, each with one feature that trainers have got wrong.

They consist of ids, not text, so any model with `VOCABULARY` ids can train on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gem_core.types import (
    Episode,
    Failure,
    FinishReason,
    Message,
    Sampling,
    StopReason,
    Turn,
    TurnStatus,
)

__all__ = [
    "CASES",
    "END",
    "GRADIENT_CASES",
    "ONE_RANK_FAILED",
    "VOCABULARY",
    "Case",
    "failed_episode",
]

VOCABULARY = 256
END = 2
"""The turn-end token of golden episodes and of the tiny model."""


@dataclass(frozen=True)
class Case:
    """A batch, its estimator, and the capabilities that it needs."""

    name: str
    episodes: tuple[Episode, ...]
    estimator: str = "rebn"
    gamma: float = 0.9
    needs: frozenset[str] = frozenset()
    """Fields of `Capabilities`; an adapter without one of them must raise `GemError`."""
    arguments: dict[str, Any] = field(default_factory=dict)


def _ids(first: int, count: int) -> tuple[int, ...]:
    """Return `count` ids that depend on `first`, without special tokens."""
    return tuple(16 + (first * 31 + k * 7) % (VOCABULARY - 16) for k in range(count))


def _turn(
    place: int,
    reward: float | None,
    *,
    added: int = 4,
    sampled: int = 3,
    cut: bool = False,
    **fields: Any,
) -> Turn:
    ids = _ids(place + 3, sampled)
    if not cut:
        ids = (*ids[:-1], END)[:sampled]
    turn = Turn(
        messages=(Message("user", f"observation {place}"),),
        action=f"action {place}",
        reward=reward,
        added_ids=_ids(place, added),
        action_ids=ids,
        logprobs=tuple(-0.25 - 0.125 * k for k in range(len(ids))),
        finish=FinishReason.LENGTH if cut else FinishReason.STOP if ids else FinishReason.EMPTY,
        sampling=Sampling(max_tokens=16),
    )
    return replace(turn, **fields)


def _episode(
    seed: int, turns: Sequence[Turn], stop: StopReason = StopReason.TERMINATED, **fields: Any
) -> Episode:
    first = replace(turns[0], restarted=True) if turns else None
    return Episode(
        env_id=fields.pop("env_id", "golden:Case-v0"),
        seed=seed,
        turns=((first, *turns[1:]) if first is not None else ()),
        stop=stop,
        **fields,
    )


def _plain(seed: int, rewards: Sequence[float], **fields: Any) -> Episode:
    """Return an episode with one turn per reward, of different lengths."""
    turns = [
        _turn(seed * 10 + t, r, added=4 + (seed + t) % 3, sampled=2 + (seed + 2 * t) % 4)
        for t, r in enumerate(rewards)
    ]
    return _episode(seed, turns, **fields)


def failed_episode(seed: int = 90) -> Episode:
    """Return an episode that crashed after a reward; no turn may be trained or counted."""
    turns = [_turn(seed, 0.7), _turn(seed + 1, None, status=TurnStatus.FAILED)]
    return _episode(
        seed,
        turns,
        StopReason.ENV_ERROR,
        failure=Failure("RuntimeError", "the environment crashed", "step"),
    )


RAGGED = (
    _plain(1, [0.0, 0.0, 1.0]),
    _plain(2, [0.5]),
    _plain(3, [0.0, -0.1]),
    _plain(4, [0.2, 0.0, 0.0, 0.4]),
)


def _opposite(seed: int, first: float) -> Episode:
    """Return an episode of two equally long turns whose advantages are `first` and -`first`."""
    turns = [_turn(seed * 10, 1.9 * first, sampled=4), _turn(seed * 10 + 1, -first, sampled=4)]
    return _episode(seed, turns)


OPPOSITE = (_opposite(15, 1.0), _opposite(16, -1.0), _opposite(17, 1.0), _opposite(18, -1.0))
"""With γ = 0.9, the returns of the turns are 1 and -1. A loss that uses the mean advantage of a
sequence trains nothing."""


def _cases() -> tuple[Case, ...]:
    cut = _episode(5, [_turn(50, 0.1, cut=True), _turn(51, 0.4)], StopReason.TRUNCATED)
    empty = _episode(
        6, [_turn(60, 0.1), _turn(61, -0.2, sampled=0, status=TurnStatus.MASKED), _turn(62, 0.5)]
    )
    masked = _episode(7, [_turn(70, 0.0), _turn(71, 0.3, status=TurnStatus.MASKED), _turn(72, 1.0)])
    only_masked = _episode(8, [_turn(80, 0.9, status=TurnStatus.MASKED)])
    adjacent = _episode(9, [_turn(90, 0.1), _turn(91, 0.6, added=0)])
    rewritten = _episode(
        10, [_turn(100, 0.0), _turn(101, 0.2), _turn(102, 1.0, added=9, restarted=True)]
    )
    rewritten_masked = _episode(
        11,
        [
            _turn(110, 0.5),
            _turn(111, 0.25, status=TurnStatus.MASKED),
            _turn(112, 1.0, added=8, restarted=True),
            _turn(113, -0.5),
        ],
    )
    one_byte_each = replace(
        _turn(120, 1.0), action_ids=(0xE2, 0x82, 0xAC, END), logprobs=(-1.0, -0.1, -0.1, -0.2)
    )
    no_turns = _episode(13, [], StopReason.CONTEXT_FULL)
    tool = _episode(14, [_turn(140, 0.05, info={"use_tool": True}), _turn(141, 1.0)])
    group = tuple(
        _plain(s, r, env_id="golden:Group-v0")
        for s, r in ((20, [0.0, 1.0]), (20, [0.5]), (21, [0.25, 0.25]), (21, [0.0]))
    )
    mixed = tuple(
        _plain(s, r, env_id="golden:Group-v0")
        for s, r in ((22, [0.0, 1.0]), (23, [0.5]), (22, [0.25]), (23, [0.0, 0.1]), (22, [0.75]))
    )
    """The episodes of two seeds in turn."""
    alike = tuple(
        replace(_plain(24, rewards, env_id="golden:Group-v0"), options={"level": level})
        for level, rewards in ((1, [0.0]), (1, [1.0]), (2, [0.2]), (2, [0.5]))
    )
    """One seed, but different options: two groups."""
    components = tuple(
        _plain(25 + i, rewards, component=f"golden:{name}-v0")
        for i, (name, rewards) in enumerate(
            (("A", [0.0, 1.0]), ("B", [100.0]), ("A", [0.5]), ("B", [300.0, -50.0]))
        )
    )
    every_turn = _episode(
        26,
        [
            _turn(260, 0.0),
            _turn(261, 0.5, added=7, restarted=True),
            _turn(262, 1.0, added=9, restarted=True),
        ],
    )
    hard = _plain(27, [*[0.0] * 7, 1.0])
    own_values = (
        _plain(1, [0.0, 0.5, 1.0]),
        replace(_plain(2, [0.5, 0.2]), stop=StopReason.TRUNCATED),
    )
    values = ((0.25, -0.5, 0.75), (1.0, 0.125, 2.0))
    first_masked = _episode(
        28, [_turn(280, 0.5, status=TurnStatus.MASKED), _turn(281, 0.1), _turn(282, 1.0)]
    )
    apart_masked = _episode(
        29,
        [
            _turn(290, 0.5),
            _turn(291, 0.1, added=7, restarted=True, status=TurnStatus.MASKED),
            _turn(292, 1.0, added=9, restarted=True),
        ],
    )
    apart_masked_at_the_end = _episode(
        30,
        [_turn(300, 0.5), _turn(301, 0.2, added=7, restarted=True, status=TurnStatus.MASKED)],
        StopReason.TRUNCATED,
    )
    missing = (*group[:1], replace(failed_episode(), env_id="golden:Group-v0", seed=20), *group[2:])
    return (
        Case("ragged turns", RAGGED),
        Case("one turn", (_plain(1, [0.7]),)),
        Case("dense negative rewards", (_plain(1, [-0.1, -0.2, -1.0]), _plain(2, [-0.05, -0.05]))),
        Case("a turn cut without its end token", (cut, _plain(2, [0.3]))),
        Case("an empty generation", (empty, _plain(2, [0.3])), needs=frozenset({"masked_turns"})),
        Case(
            "a masked middle turn",
            (masked, only_masked, _plain(2, [0.3])),
            needs=frozenset({"masked_turns"}),
        ),
        Case(
            "a crash after non-zero rewards",
            (failed_episode(), *RAGGED),
            needs=frozenset({"failed_episodes"}),
        ),
        Case(
            "a whole batch failed",
            (failed_episode(91), failed_episode(92)),
            needs=frozenset({"failed_episodes"}),
        ),
        Case(
            "context full",
            (replace(RAGGED[0], stop=StopReason.CONTEXT_FULL), no_turns, *RAGGED[1:]),
            needs=frozenset({"failed_episodes"}),
        ),
        Case("adjacent turns", (adjacent, *RAGGED), needs=frozenset({"several_sequences"})),
        Case("rewritten history", (rewritten, *RAGGED), needs=frozenset({"several_sequences"})),
        Case(
            "rewritten history, a turn masked",
            (rewritten_masked, *RAGGED),
            needs=frozenset({"several_sequences", "masked_turns"}),
        ),
        Case("multi-byte text", (_episode(12, [one_byte_each]), *RAGGED)),
        Case(
            "constant returns, 0.1 + 0.2 against 0.3",
            (_plain(1, [0.1, 0.2]), _plain(2, [0.3])),
            "grpo",
            1.0,
            frozenset({"groups"}),
        ),
        Case("constant returns of turns", (_plain(1, [0.1 + 0.2]), _plain(2, [0.3]))),
        Case("tool turns", (tool, *RAGGED)),
        Case("groups, grpo", group, "grpo", 1.0, frozenset({"groups"})),
        Case("groups, rloo", group, "rloo", 1.0, frozenset({"groups"})),
        Case(
            "a group with a member missing",
            missing,
            "grpo",
            1.0,
            frozenset({"groups", "failed_episodes"}),
        ),
        Case("reinforce", RAGGED, "reinforce"),
        Case("reinforce++", RAGGED, "reinforce++"),
        Case("no discount", RAGGED, "rebn", 1.0),
        Case(
            "gae",
            RAGGED,
            "gae",
            0.9,
            frozenset({"critic_values"}),
            {"values": tuple((0.1,) * len(e.turns) for e in RAGGED)},
        ),
        Case(
            "gae, truncated",
            own_values,
            "gae",
            0.9,
            frozenset({"critic_values"}),
            {"values": values},
        ),
        Case(
            "gae, other lambda, whitened",
            own_values,
            "gae",
            1.0,
            frozenset({"critic_values"}),
            {"values": values, "lam": 0.5, "whiten": True},
        ),
        Case(
            "gae, a turn masked",
            (first_masked, own_values[0]),
            "gae",
            0.9,
            frozenset({"critic_values", "masked_turns"}),
            {"values": ((0.5, 0.25, -0.25), values[0])},
        ),
        Case(
            "gae, masked turns in sequences of their own",
            (apart_masked, apart_masked_at_the_end),
            "gae",
            0.9,
            frozenset({"critic_values", "masked_turns", "several_sequences"}),
            {"values": ((0.5, 0.25, -0.25), values[1])},
        ),
        Case("groups in turn, grpo", mixed, "grpo", 1.0, frozenset({"groups"})),
        Case("groups in turn, rloo", mixed, "rloo", 0.9, frozenset({"groups"})),
        Case("equal seeds, other options", alike, "grpo", 1.0, frozenset({"groups"})),
        Case(
            "groups, grpo without scale",
            mixed,
            "grpo",
            1.0,
            frozenset({"groups"}),
            {"scale": False},
        ),
        Case("statistics per environment", components, arguments={"per_env": True}),
        Case(
            "template mode, every prompt rewritten",
            (every_turn, *RAGGED),
            needs=frozenset({"several_sequences"}),
        ),
        Case("a long episode among short ones", (_plain(2, [0.1]), hard, _plain(3, [0.2]))),
        Case("a masked first turn", (first_masked, *RAGGED), needs=frozenset({"masked_turns"})),
        Case("large rewards", (_plain(1, [1e4, -3e4]), _plain(2, [2e4]))),
        Case("opposite turns", OPPOSITE),
    )


def _gradient_cases() -> tuple[Case, ...]:
    long = tuple(
        _plain(s, [0.1 * (s % 4), 0.0, 1.0 if s % 2 else -0.1][: 1 + s % 3]) for s in range(30, 38)
    )
    between = _episode(
        41, [_turn(410, 0.0), _turn(411, 0.3, sampled=6, status=TurnStatus.MASKED), _turn(412, 1.0)]
    )
    around = _episode(
        42,
        [
            _turn(420, 0.4, sampled=5, status=TurnStatus.MASKED),
            _turn(421, 0.2, sampled=4),
            _turn(422, -0.3, sampled=5, status=TurnStatus.MASKED),
        ],
    )
    empty = _episode(
        43,
        [_turn(430, 0.1), _turn(431, -0.2, sampled=0, status=TurnStatus.MASKED), _turn(432, 0.5)],
    )
    only_masked = _episode(44, [_turn(440, 0.9, sampled=6, status=TurnStatus.MASKED)])
    gaps = (
        _plain(40, [0.3, 1.0]),
        between,
        failed_episode(95),
        around,
        empty,
        only_masked,
        _plain(45, [-0.1]),
        failed_episode(96),
    )
    return (
        Case("gradient", long),
        Case(
            "gradient with masked turns and failed episodes",
            gaps,
            needs=frozenset({"masked_turns", "failed_episodes"}),
        ),
        Case("gradient with opposite turns", OPPOSITE),
    )


CASES = _cases()
GRADIENT_CASES = _gradient_cases()
"""The batches with a committed gradient. Dividing the second one's loss by the tokens of masked
turns, or by the sequences of failed episodes, scales its gradient wrongly. A sequence-level ratio
makes the third one's gradient 0."""
ONE_RANK_FAILED = Case(
    "a rank with nothing but failed episodes",
    (RAGGED[0], failed_episode(93), RAGGED[3], failed_episode(94)),
)
"""Dealt to two ranks in turn, the second rank has only failed episodes."""
