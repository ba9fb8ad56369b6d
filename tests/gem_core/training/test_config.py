"""What a user says about an environment to train on, whichever trainer it is for, and how a batch went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gem_core import RandomPlayer, StopReason, run_batch, tasks_for
from gem_core.errors import ConfigError, OptionError, UnknownNameError
from gem_core.rollout.limits import Limits
from gem_core.training.config import TrainingConfig
from gem_core.training.metrics import BatchMetrics, advantage_sizes
from gem_trl import ADAPTER

GAME = "game:GuessTheNumber-v0-easy"


@dataclass
class Spec(TrainingConfig):
    """For a trainer that takes one sequence per episode, and has no critic."""

    adapter = ADAPTER


@dataclass
class Able(TrainingConfig):
    """For a trainer that can do everything."""

    adapter = replace(
        ADAPTER,
        capabilities=replace(ADAPTER.capabilities, several_sequences=True, critic_values=True),
    )


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"env_id": "game:GuesTheNumber-v0-easy"}, UnknownNameError, "did you mean"),
        ({"gamma": -0.1}, ConfigError, "between 0 and 1"),
        ({"advantage": "gae"}, ConfigError, "a critic, which trl does not offer"),
        ({"advantage": "rebm"}, UnknownNameError, "did you mean"),
        ({"estimator_kwargs": {"per_envs": True}}, ConfigError, "does not take"),
        ({"wrappers": "concat"}, ConfigError, "several sequences"),
        ({"wrappers": ["concat_chat(window=2)"]}, ConfigError, "several sequences"),
        ({"wrappers": "reakt"}, UnknownNameError, "react"),
        ({"tools": "pyton"}, UnknownNameError, "python"),
        ({"wrappers": "turn_limit(turns=3)"}, ConfigError, "does not take 'turns'"),
        ({"env_kwargs": {"max_turn": 3}}, ConfigError, "does not take 'max_turn'"),
        ({"eval_env_kwargs": {"split": "test"}}, ConfigError, "does not take 'split'"),
        ({"options": {"index": 3}}, OptionError, "does not take the option 'index'"),
        (
            {"env_id": f"2*{GAME} + 1*game:Wordle-v0-easy", "wrappers": "reakt"},
            UnknownNameError,
            "react",
        ),
        ({"seeds": -1}, ConfigError, "a number of seeds"),
        ({"seeds": [1_000_002], "eval_seeds": 3}, ConfigError, "are trained on"),
        ({"step_deadline": 0}, ConfigError, "step_deadline"),
        ({"horizon": []}, ConfigError, "at least one number of turns"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_is_loaded(
    fields: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Spec(**{"env_id": GAME, **fields})


def test_a_trainer_that_can_do_more_is_asked_for_more() -> None:
    assert Able(GAME, advantage="gae", wrappers=["concat"]).advantage == "gae"


def test_seeds_tasks_and_limits() -> None:
    spec = Spec(
        GAME,
        seeds=3,
        eval_seeds=2,
        wrappers="react,turn_limit(max_turns=2)",
        horizon="2,4@10",
        retries=1,
    )
    assert (spec.train_seeds, spec.held_out_seeds) == ([0, 1, 2], [1_000_000, 1_000_001])
    assert spec.task(7, 5).wrappers == (("react", {}), ("turn_limit", {"max_turns": 2}))
    assert (spec.task(7, 5).seed, spec.task(7, 5).index) == (7, 5)
    assert spec.limits(0, max_response=64) == Limits(max_turns=2, max_response=64, retries=1)
    assert spec.limits(10, max_context=512) == Limits(max_turns=4, max_context=512, retries=1)
    assert Spec(GAME, max_context=100).limits(0, max_context=512).max_context == 100
    assert Spec(GAME, max_context=1024).limits(0, max_context=512).max_context == 512, (
        "more than the engine takes would fail there"
    )
    assert Spec(GAME, max_context=100).limits(0).max_context == 100


def test_a_trainer_that_takes_several_sequences_refuses_unknown_names_too() -> None:
    with pytest.raises(UnknownNameError, match="boxed"):
        Able(GAME, wrappers=["boxd"])


def test_a_split_of_its_own_is_evaluated_on() -> None:
    spec = Spec(
        "qa:Sample-v0",
        seeds=3,
        eval_seeds=2,
        env_kwargs={"max_turns": 2},
        eval_env_kwargs={"split": "test", "max_turns": 1},
    )
    assert spec.task(2).env_kwargs == {"max_turns": 2}
    assert spec.task(1_000_001).env_kwargs == {"max_turns": 1, "split": "test"}
    assert Spec("qa:Sample-v0", options={"index": 3}).task(0).options == {"index": 3}


def test_advantages_come_from_the_estimator_of_the_config() -> None:
    episodes = run_batch(tasks_for(GAME, range(16)), RandomPlayer())
    seen: list[Any] = []
    plain = Spec(GAME, gamma=0.5, advantage="reinforce").compute_advantages(episodes)
    assert plain[0] == pytest.approx(
        [
            0.5 ** (len(e.turns) - 1 - t) * e.rewards[-1]
            for e in episodes[:1]
            for t in range(len(e.turns))
        ]
    )
    Spec(GAME).compute_advantages(episodes, gather=lambda mine: seen.append(mine) or [mine])
    assert len(seen) == 1


def test_metrics_are_the_same_for_any_split_over_ranks() -> None:
    episodes = run_batch(tasks_for(GAME, range(20)), RandomPlayer(), limits=Limits(max_turns=2))
    episodes[0] = replace(episodes[0], stop=StopReason.ENV_ERROR)
    whole = BatchMetrics.of(episodes)
    split = BatchMetrics.total(
        [
            BatchMetrics.of(episodes[:1]),
            BatchMetrics.of(episodes[1:7]),
            BatchMetrics.of(episodes[7:]),
        ]
    )
    assert split == whole
    means = whole.means()
    solved = sum(bool(e.success) for e in episodes[1:])
    assert means["success"] == pytest.approx(solved / 19), (
        "an episode that a limit cut short is no success, and counts"
    )
    assert means["failed"] == pytest.approx(1 / 20)
    assert means["turns"] == pytest.approx(sum(len(e.turns) for e in episodes[1:]) / 19)


def test_the_size_of_an_advantage_counts_by_trained_turns() -> None:
    episodes = run_batch(tasks_for(GAME, range(4)), RandomPlayer(), limits=Limits(max_turns=2))
    episodes[0] = replace(episodes[0], stop=StopReason.ENV_ERROR)
    turns = [[float(-n - t) for t in range(len(e.turns))] for n, e in enumerate(episodes)]
    assert advantage_sizes(episodes, turns) == [abs(a) for numbers in turns[1:] for a in numbers]


def test_metrics_of_nothing_but_failed_episodes_name_only_those() -> None:
    episodes = [
        replace(e, stop=StopReason.ENV_ERROR)
        for e in run_batch(tasks_for(GAME, range(3)), RandomPlayer())
    ]
    assert BatchMetrics.of(episodes).means() == {"failed": 1.0, "attempts": 1.0}
    assert BatchMetrics.of([]).means() == {}
