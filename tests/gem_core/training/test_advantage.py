"""Advantages: estimators equal hand-computed values and an exact reference."""

from __future__ import annotations

import math
import pickle
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import Episode, StopReason, Turn, TurnStatus, advantages, register_estimator
from gem_core.errors import ConfigError, RegistrationError, UnknownNameError
from gem_core.training.advantage import estimators
from gem_core.training.moments import EPSILON, Moments

V, M, X = TurnStatus.VALID, TurnStatus.MASKED, TurnStatus.FAILED


def episode(
    *rewards: float,
    masked: Sequence[int] = (),
    stop: StopReason = StopReason.TERMINATED,
    seed: int = 1,
    env: str = "test:Env",
    component: str = "",
    tokens: Sequence[int] | None = None,
) -> Episode:
    """An episode with these rewards; if it failed, the last reward is unknown."""
    turns = [
        Turn(
            (),
            "",
            r,
            (1,),
            False,
            (9,) * (tokens[t] if tokens else 1),
            None,
            M if t in masked else V,
        )
        for t, r in enumerate(rewards)
    ]
    if stop.failed:
        turns[-1:] = [Turn((), "", None, (1,), False, (9,), None, X)]
    return Episode(env, seed, tuple(turns), stop, component=component)


FAILED = episode(1.0, 99.0, stop=StopReason.ENV_ERROR)

# Computed by hand, without ε in std + ε; the tests compare within 1e-7.
CASES: dict[str, tuple[str, dict[str, Any], list[Episode], list[list[float]]]] = {
    # G_1 = 4, G_0 = 1 + 0.5 * 4
    "reinforce": ("reinforce", {"gamma": 0.5}, [episode(1.0, 4.0)], [[3.0, 4.0]]),
    "reinforce, masked": ("reinforce", {}, [episode(1.0, 4.0, 2.0, masked=[1])], [[7.0, 0.0, 2.0]]),
    "reinforce, failed": ("reinforce", {}, [FAILED, episode(2.0)], [[0.0, 0.0], [2.0]]),
    # returns 3, 4, 5: mean 4, std sqrt((1 + 0 + 1) / 3) = 0.816497; 1 / 0.816497 = 1.224745
    "rebn": (
        "rebn",
        {"gamma": 0.5},
        [episode(1.0, 4.0), episode(5.0)],
        [[-1.224745, 0.0], [1.224745]],
    ),
    # turns, not episodes: returns 2, 1, 5; mean 8/3, deviations -2/3, -5/3, 7/3,
    # std sqrt((4 + 25 + 49) / 27) = 1.699673
    "rebn counts turns": (
        "rebn",
        {},
        [episode(1.0, 1.0), episode(5.0)],
        [[-0.392232, -0.980581], [1.372813]],
    ),
    # the masked turn's reward flows to turn 0 (G = 3, 2, 1), but it is not counted:
    # of 3 and 1 mean 2, std 1
    "rebn, masked": ("rebn", {}, [episode(1.0, 1.0, 1.0, masked=[1])], [[1.0, 0.0, -1.0]]),
    # the failed episode is excluded: of 1 and 3 mean 2, std 1
    "rebn, failed": ("rebn", {}, [episode(1.0), FAILED, episode(3.0)], [[-1.0], [0.0, 0.0], [1.0]]),
    "rebn, one turn": ("rebn", {}, [episode(7.0)], [[0.0]]),
    "rebn, one valid turn": ("rebn", {}, [episode(7.0, 2.0, masked=[0])], [[0.0, 0.0]]),
    "rebn, no turn": ("rebn", {}, [episode(), FAILED], [[], [0.0, 0.0]]),
    "rebn, no episode": ("rebn", {}, [], []),
    # 0.1 + 0.2 differs from 0.3 by 5.6e-17: rounding, not signal
    "rebn, constant": ("rebn", {}, [episode(0.1 + 0.2), episode(0.3)], [[0.0], [0.0]]),
    # R = 1, 2, 6 in one group: mean 3, std sqrt((4 + 1 + 9) / 3) = 2.160247;
    # one number for all turns of an episode
    "grpo": (
        "grpo",
        {},
        [
            episode(0.5, 0.5),
            episode(2.0),
            episode(6.0),
            episode(9.0, seed=2),
            episode(11.0, seed=2),
        ],
        [[-0.925820] * 2, [-0.462910], [1.388730], [-1.0], [1.0]],
    ),
    "grpo, not scaled": (
        "grpo",
        {"scale": False},
        [episode(0.5, 0.5), episode(2.0), episode(6.0)],
        [[-2.0, -2.0], [-1.0], [3.0]],
    ),
    # a member is missing: of 2 and 6 mean 4, std 2
    "grpo, a member failed": (
        "grpo",
        {},
        [FAILED, episode(2.0), episode(6.0)],
        [[0.0, 0.0], [-1.0], [1.0]],
    ),
    "grpo, one left": ("grpo", {}, [FAILED, episode(2.0)], [[0.0, 0.0], [0.0]]),
    "grpo, one left, not scaled": (
        "grpo",
        {"scale": False},
        [FAILED, episode(2.0)],
        [[0.0, 0.0], [0.0]],
    ),
    "grpo, constant": ("grpo", {}, [episode(0.1 + 0.2), episode(0.3)], [[0.0], [0.0]]),
    # gamma: R = 1 + 0.5 * 4 = 3 against 1: mean 2, std 1
    "grpo, discounted": (
        "grpo",
        {"gamma": 0.5},
        [episode(1.0, 4.0), episode(1.0)],
        [[1.0, 1.0], [-1.0]],
    ),
    # an episode without a trained turn is not a member: of 2 and 6 as above
    "grpo, a member masked": (
        "grpo",
        {},
        [episode(50.0, masked=[0]), episode(2.0), episode(6.0)],
        [[0.0], [-1.0], [1.0]],
    ),
    # R = 1, 2, 6: 1 - (2 + 6) / 2 = -3, 2 - (1 + 6) / 2 = -1.5, 6 - (1 + 2) / 2 = 4.5
    "rloo": (
        "rloo",
        {},
        [episode(0.5, 0.5), episode(2.0), episode(6.0)],
        [[-3.0, -3.0], [-1.5], [4.5]],
    ),
    "rloo, a member failed": (
        "rloo",
        {},
        [FAILED, episode(2.0), episode(6.0)],
        [[0.0, 0.0], [-4.0], [4.0]],
    ),
    "rloo, one left": ("rloo", {}, [FAILED, episode(6.0)], [[0.0, 0.0], [0.0]]),
    "rloo, constant": ("rloo", {}, [episode(0.1 + 0.2), episode(0.3)], [[0.0], [0.0]]),
    # returns 4 (3 tokens) and 0 (1 token): mean 12 / 4 = 3,
    # std sqrt((3 * 1 + 1 * 9) / 4) = 1.732051
    "reinforce++": (
        "reinforce++",
        {},
        [episode(4.0, tokens=[3]), episode(0.0)],
        [[0.577350], [-1.732051]],
    ),
    # delta_1 = 1 + 0 - 0.5 = 0.5; delta_0 = 0 + 0.9 * 0.5 - 0.2 = 0.25;
    # A_0 = 0.25 + 0.9 * 0.8 * 0.5 = 0.61
    "gae, terminated": (
        "gae",
        {"gamma": 0.9, "lam": 0.8, "values": [[0.2, 0.5]]},
        [episode(0.0, 1.0)],
        [[0.61, 0.5]],
    ),
    # terminated: the value for the end is not used
    "gae, value at the end": (
        "gae",
        {"gamma": 0.9, "lam": 0.8, "values": [[0.2, 0.5, 9.0]]},
        [episode(0.0, 1.0)],
        [[0.61, 0.5]],
    ),
    # cut: delta_1 = 1 + 0.9 * 2 - 0.5 = 2.3; delta_0 = 0.25; A_0 = 0.25 + 0.72 * 2.3 = 1.906
    "gae, truncated": (
        "gae",
        {"gamma": 0.9, "lam": 0.8, "values": [[0.2, 0.5, 2.0]]},
        [episode(0.0, 1.0, stop=StopReason.TURN_LIMIT)],
        [[1.906, 2.3]],
    ),
    "gae, failed": (
        "gae",
        {"values": [[0.0, 0.0], [0.5]], "gamma": 1.0},
        [FAILED, episode(1.0)],
        [[0.0, 0.0], [0.5]],
    ),
    # A = 0.61 and 0.5 normalised: mean 0.555, std 0.055
    "gae, whitened": (
        "gae",
        {"gamma": 0.9, "lam": 0.8, "values": [[0.2, 0.5]], "whiten": True},
        [episode(0.0, 1.0)],
        [[1.0, -1.0]],
    ),
    # separate statistics per environment: 1 and 3, 100 and 300
    "rebn per environment": (
        "rebn",
        {"per_env": True},
        [
            episode(1.0, component="a"),
            episode(100.0, component="b"),
            episode(3.0, component="a"),
            episode(300.0, component="b"),
        ],
        [[-1.0], [-1.0], [1.0], [1.0]],
    ),
    # the squares of 1e300 and 3e300 overflow, the advantages do not
    "rebn, huge": ("rebn", {}, [episode(1e300), episode(3e300)], [[-1.0], [1.0]]),
    "grpo, huge": ("grpo", {}, [episode(1e300), episode(3e300)], [[-1.0], [1.0]]),
    "rebn, huge and small": (
        "rebn",
        {},
        [episode(1e300), episode(-1e300), episode(1.0)],
        [[1.224745], [-1.224745], [0.0]],
    ),
    # 1e-300 / (1e-300 + 1e-8) is 0 to any precision
    "rebn, tiny": ("rebn", {}, [episode(1e-300), episode(3e-300)], [[0.0], [0.0]]),
    # deviations of 1e-8: 1e-8 / (1e-8 + 1e-8)
    "rebn, as small as epsilon": ("rebn", {}, [episode(1e-8), episode(3e-8)], [[-0.5], [0.5]]),
    # a std of 5e-4 around 1000 is below 1e-6 of the scale, so it counts as rounding; 5e-3 does not:
    # 5e-3 / (5e-3 + 1e-8)
    "rebn, noise": ("rebn", {}, [episode(1000.0 - 5e-4), episode(1000.0 + 5e-4)], [[0.0], [0.0]]),
    "rebn, no noise": (
        "rebn",
        {},
        [episode(1000.0 - 5e-3), episode(1000.0 + 5e-3)],
        [[-0.999998], [0.999998]],
    ),
    # rewards of a million that cancel leave noise in the returns: S counts rewards too
    "rebn, cancelled rewards": (
        "rebn",
        {},
        [episode(1e6, -1e6 + 0.1, masked=[1]), episode(0.2)],
        [[0.0, 0.0], [0.0]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_advantages_equal_hand_computed_values(case: str) -> None:
    name, kwargs, episodes, expected = CASES[case]
    actual = advantages(episodes, name, **kwargs)
    assert actual == [pytest.approx(numbers, rel=1e-6, abs=1e-7) for numbers in expected]


def test_rebn_is_the_default() -> None:
    assert advantages([episode(1.0), episode(3.0)]) == [[pytest.approx(-1.0)], [pytest.approx(1.0)]]


@pytest.mark.parametrize("name", ["reinforce", "rebn", "grpo", "rloo", "reinforce++"])
@pytest.mark.parametrize("scale", [1e300, 1.0, 1e-300, 5e-324])
def test_advantages_are_finite_for_rewards_of_any_size(name: str, scale: float) -> None:
    batch = [episode(scale, -scale), episode(0.0, scale), episode(scale, scale)]
    assert all(math.isfinite(a) for numbers in advantages(batch, name, gamma=0.9) for a in numbers)


@pytest.mark.parametrize("value", [0.1, 0.7, 0.9, -3.3, 1e300, 1e-300, 0.0])
@pytest.mark.parametrize("n", [2, 3, 7, 127])
def test_constant_returns_give_exactly_zero(value: float, n: int) -> None:
    """A float32 implementation gives NaN for 117 of 666 such batches, and 11 for one."""
    for name in ("rebn", "reinforce++", "grpo", "rloo"):
        assert advantages([episode(value)] * n, name) == [[0.0]] * n


# A reference in exact rational arithmetic.


def exact_returns(one: Episode, gamma: Fraction) -> list[Fraction]:
    returns: list[Fraction] = []
    for reward in reversed(one.rewards):
        returns.insert(0, Fraction(reward) + gamma * (returns[0] if returns else 0))
    return returns


def exact_rebn(
    episodes: Sequence[Episode], gamma: float, weight: Callable[[Turn], int] = lambda turn: 1
) -> list[list[float]]:
    returns = [
        exact_returns(e, Fraction(gamma)) if not e.failed else [Fraction(0)] * len(e.turns)
        for e in episodes
    ]
    valid = [
        (g, weight(t))
        for e, numbers in zip(episodes, returns)
        for g, t in zip(numbers, e.turns)
        if not e.failed and t.status is TurnStatus.VALID
    ]
    n = sum(w for _, w in valid)
    mean = sum((g * w for g, w in valid), Fraction(0)) / n if n else Fraction(0)
    variance = sum(((g - mean) ** 2 * w for g, w in valid), Fraction(0)) / n if n else Fraction(0)
    std = math.sqrt(variance)
    largest = max((abs(x) for e in episodes if not e.failed for x in e.rewards), default=0.0)
    largest = max(largest, max((float(abs(g)) for g, _ in valid), default=0.0))
    flat = n <= 1 or std <= 1e-6 * largest
    return [
        [
            0.0
            if flat or e.failed or t.status is not TurnStatus.VALID
            else float(g - mean) / (std + EPSILON)
            for g, t in zip(numbers, e.turns)
        ]
        for e, numbers in zip(episodes, returns)
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[Episode]:
    batch = []
    for _ in range(draw(st.integers(0, 8))):
        rewards = draw(
            st.lists(
                st.sampled_from([0.0, 1.0, -0.1, 0.3, 0.25, 7.5]) | st.floats(-100, 100, width=32),
                max_size=4,
            )
        )
        masked = draw(st.lists(st.integers(0, 3), max_size=2))
        stop = draw(
            st.sampled_from(
                [
                    StopReason.TERMINATED,
                    StopReason.TRUNCATED,
                    StopReason.TERMINATED,
                    StopReason.ENV_ERROR,
                ]
            )
        )
        if stop.failed:
            rewards.append(0.0)
        tokens = [draw(st.integers(1, 5)) for _ in rewards]
        component = draw(st.sampled_from(["a", "b"]))
        seed = draw(st.integers(0, 2))
        batch.append(
            episode(
                *rewards, masked=masked, stop=stop, seed=seed, component=component, tokens=tokens
            )
        )
    return batch


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_rebn_agrees_with_exact_arithmetic(batch: list[Episode], gamma: float) -> None:
    """Invariant 3."""
    for name, weight in (
        ("rebn", lambda turn: 1),
        ("reinforce++", lambda turn: len(turn.action_ids)),
    ):
        actual = advantages(batch, name, gamma=gamma)
        assert actual == [
            pytest.approx(numbers, rel=1e-6, abs=1e-6)
            for numbers in exact_rebn(batch, gamma, weight)
        ]


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.5, 1.0]))
def test_per_env_equals_a_separate_batch_per_environment(
    batch: list[Episode], gamma: float
) -> None:
    actual = advantages(batch, "rebn", gamma=gamma, per_env=True)
    for component in ("a", "b"):
        alone = [e for e in batch if e.component == component]
        expected = advantages(alone, "rebn", gamma=gamma)
        assert [numbers for numbers, e in zip(actual, batch) if e.component == component] == [
            pytest.approx(numbers) for numbers in expected
        ]


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.5, 1.0]))
def test_groups_are_normalised_separately(batch: list[Episode], gamma: float) -> None:
    for name in ("grpo", "rloo"):
        actual = advantages(batch, name, gamma=gamma)
        for seed in range(3):
            alone = [e for e in batch if e.seed == seed]
            expected = advantages(alone, name, gamma=gamma)
            assert [numbers for numbers, e in zip(actual, batch) if e.seed == seed] == [
                pytest.approx(numbers) for numbers in expected
            ]


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from([0.5, 1.0]))
def test_rloo_subtracts_the_mean_of_the_other_episodes(batch: list[Episode], gamma: float) -> None:
    actual = advantages(batch, "rloo", gamma=gamma)
    members = [
        e for e in batch if not e.failed and any(t.status is TurnStatus.VALID for t in e.turns)
    ]
    for numbers, one in zip(actual, batch):
        others = [
            exact_returns(e, Fraction(gamma))[0]
            for e in members
            if e is not one and e.group == one.group
        ]
        if one not in members or not others:
            assert numbers == [0.0] * len(one.turns)
            continue
        expected = float(exact_returns(one, Fraction(gamma))[0] - sum(others) / len(others))
        for a, turn in zip(numbers, one.turns):
            assert a == pytest.approx(
                expected if turn.status is TurnStatus.VALID else 0.0, rel=1e-6, abs=1e-3
            )


# Ranks.


def on_ranks(parts: Sequence[list[Episode]], name: str, **kwargs: Any) -> list[list[float]]:
    """Run each part on a thread, with a `gather` that pickles and exchanges values like ranks."""
    barrier = threading.Barrier(len(parts))
    gathered: list[dict[int, bytes]] = []
    results: list[Any] = [None] * len(parts)

    def rank(number: int) -> None:
        calls = 0

        def gather(value: Any) -> list[Any]:
            nonlocal calls
            if barrier.wait(10) == 0:
                gathered.append({})
            barrier.wait(10)
            gathered[calls][number] = pickle.dumps(value)
            barrier.wait(10)
            calls += 1
            return [pickle.loads(gathered[calls - 1][n]) for n in range(len(parts))]

        results[number] = advantages(parts[number], name, gather=gather, **kwargs)

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [numbers for part in results for numbers in part]


@settings(max_examples=25, deadline=None)
@given(
    batches(),
    st.lists(st.integers(0, 8), max_size=3),
    st.sampled_from(["rebn", "grpo", "rloo", "reinforce++", "reinforce"]),
)
def test_any_split_across_ranks_equals_one_rank(
    batch: list[Episode], cuts: list[int], name: str
) -> None:
    """Includes groups that span ranks and ranks without episodes."""
    edges = [0, *sorted(min(c, len(batch)) for c in cuts), len(batch)]
    parts = [batch[a:b] for a, b in pairwise(edges)]
    alone = advantages(batch, name, gamma=0.9)
    assert on_ranks(parts, name, gamma=0.9) == [
        pytest.approx(numbers, rel=1e-12, abs=1e-12) for numbers in alone
    ]


def test_a_large_mean_does_not_lose_precision_across_ranks() -> None:
    """Returns of 1e6 and 1e6 + 10 on four ranks, which sums of squares cannot separate."""
    batch = [episode(1e6 + 10.0 * (i % 2), seed=i) for i in range(64)]
    parts = [batch[i::4] for i in range(4)]
    assert {round(numbers[0], 6) for numbers in on_ranks(parts, "rebn")} == {-1.0, 1.0}


def test_together_equal_the_moments_of_all_values() -> None:
    together = Moments.of([1.0, 2.0, 4.0, 1e300])
    parts = (
        Moments.of([1.0])
        .merge(Moments.of([]))
        .merge(Moments.of([2.0, 4.0]))
        .merge(Moments.of([1e300]))
    )
    assert (parts.count, parts.unit) == (4.0, together.unit)
    assert (parts.mean, parts.m2) == (pytest.approx(together.mean), pytest.approx(together.m2))
    assert (Moments.of([]).std, Moments.of([]).merge(Moments.of([])).count) == (0.0, 0.0)


# Names and arguments.


def test_an_unknown_estimator_suggests_a_similar_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'rebn'"):
        advantages([], "reborn")


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("rebn", {"lam": 0.5}, "does not take"),
        ("rebn", {"gamma": 1.5}, "between 0 and 1"),
        ("gae", {}, r"needs \['values'\]"),
        ("gae", {"values": []}, "values for 0 episodes"),
        ("gae", {"values": [[1.0]]}, "needs 3"),
        ("gae", {"values": [[1.0, 1.0]], "gamma": -1.0}, "gamma"),
        ("gae", {"values": [[1.0, 1.0]], "lam": 2.0}, "lam"),
        ("gae", {"values": [[1.0, 1.0]], "lam": None}, "lam must be a number between 0 and 1"),
        ("gae", {"values": None}, "gae needs values for 1 episodes, got None"),
        ("gae", {"values": [None]}, "needs 3 values for an episode of 2 turns, got None"),
        ("rebn", {"gamma": None}, "gamma must be a number between 0 and 1, got None"),
        ("grpo", {"gamma": "1"}, "gamma must be a number between 0 and 1, got '1'"),
    ],
)
def test_advantages_rejects_invalid_arguments(
    name: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        advantages([episode(1.0, 1.0)], name, **kwargs)


def test_gae_needs_a_final_value_unless_terminated() -> None:
    with pytest.raises(
        ConfigError,
        match="3 values for an episode of 2 turns, the last for its end by turn_limit, got 2",
    ):
        advantages([episode(0.0, 1.0, stop=StopReason.TURN_LIMIT)], "gae", values=[[0.1, 0.2]])


def test_a_registered_estimator_is_used_by_name() -> None:
    constant = (5.0, 5.0)
    register_estimator("test-constant", lambda episodes: [constant] * len(episodes))  # type: ignore[list-item,arg-type,return-value]
    try:
        batch = [episode(1.0, 2.0, masked=[1]), FAILED, episode(1.0, 1.0)]
        assert advantages(batch, "test-constant") == [[5.0, 0.0], [0.0, 0.0], [5.0, 5.0]]
        with pytest.raises(ConfigError, match=r"returned \[2\] numbers for \[1\] turns"):
            advantages([episode(1.0)], "test-constant")
        with pytest.raises(RegistrationError, match="already registered"):
            register_estimator("test-constant", lambda episodes: [])
    finally:
        estimators.remove("test-constant")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_advantage_names_the_estimator_and_turn(bad: float) -> None:
    register_estimator("test-bad", lambda episodes: [[bad]] * len(episodes))
    try:
        with pytest.raises(ConfigError, match="test-bad.*turn 0"):
            advantages([episode(1.0)], "test-bad")
    finally:
        estimators.remove("test-bad")


@pytest.mark.parametrize("name", ["reinforce", "rebn", "reinforce++", "grpo", "rloo"])
@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [math.inf, -math.inf]])
def test_a_reward_that_is_not_finite_names_its_episode(name: str, bad: list[float]) -> None:
    batch = [episode(1.0, seed=1), episode(0.5, *bad, seed=77), episode(0.0, seed=1)]
    with pytest.raises(ConfigError, match=rf"test:Env, seed 77, .* reward {bad[0]} at turn 1"):
        advantages(batch, name)


def test_gae_does_not_build_the_rewards_for_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    original = Episode.rewards.fget
    assert original is not None

    def rewards(self: Episode) -> tuple[float, ...]:
        built.append(len(self.turns))
        return original(self)

    monkeypatch.setattr(Episode, "rewards", property(rewards))
    advantages([episode(*[1.0] * 50)], "gae", values=[[0.0] * 50])
    assert len(built) <= 2


@pytest.mark.parametrize(("function", "needs"), [("text", ()), (len, ["magic"])])
def test_register_estimator_rejects_invalid_estimators(function: Any, needs: Any) -> None:
    with pytest.raises(RegistrationError):
        register_estimator("test-none", function, needs)


def test_builtin_estimators_declare_their_needs() -> None:
    needs = {name: sorted(entry.needs) for name, entry in estimators.all().items()}
    assert needs == {
        "gae": ["values"],
        "grpo": ["groups"],
        "rebn": [],
        "reinforce": [],
        "reinforce++": [],
        "rloo": ["groups"],
    }
