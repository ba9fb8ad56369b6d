"""Training config and batch metrics, for any trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gem_core import Episode, RandomPlayer, StopReason, run_batch, tasks_for
from gem_core.errors import ConfigError, OptionError, UnknownNameError
from gem_core.rollout.limits import Limits
from gem_core.training.config import TrainingConfig
from gem_core.training.metrics import BatchMetrics, logprob_gap
from gem_trl import ADAPTER

GAME = "game:GuessTheNumber-v0-easy"


@dataclass
class Config(TrainingConfig):
    """A trainer that takes one sequence per episode and has no critic."""

    adapter = replace(ADAPTER, capabilities=replace(ADAPTER.capabilities, several_sequences=False))


@dataclass
class FullConfig(TrainingConfig):
    """A trainer that supports everything."""

    adapter = replace(
        ADAPTER,
        capabilities=replace(ADAPTER.capabilities, several_sequences=True, critic_values=True),
    )


@pytest.mark.parametrize(
    ("fields", "error", "message"),
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
        (
            {"env_id": f"2*{GAME} + 1*game:Wordle-v0-easy", "options": {"index": 3}},
            OptionError,
            "does not take the option 'index'",
        ),
        ({"seeds": -1}, ConfigError, "a number of seeds"),
        ({"seeds": 0}, ConfigError, "seeds=0 leaves nothing to train on"),
        ({"execution": "thread"}, ConfigError, "execution must be"),
        ({"hosts": 4}, ConfigError, "hosts=4 needs execution='ray'"),
        ({"history": "rewrite"}, ConfigError, "history must be"),
        ({"history": "template"}, ConfigError, "one per episode; use history='append'"),
        ({"max_failed_updates": -1}, ConfigError, "max_failed_updates"),
        ({"seeds": [1_000_002], "eval_seeds": 3}, ConfigError, "are trained on"),
        ({"step_deadline": 0}, ConfigError, "step_deadline"),
        ({"horizon": []}, ConfigError, "at least one number of turns"),
        ({"horizon": [4, 7]}, ConfigError, "as in '4,7@80'"),
        ({"record": "a.jsonl", "metrics": "./a.jsonl"}, ConfigError, "the same file"),
    ],
)
def test_a_config_rejects_unsupported_and_invalid_fields(
    fields: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Config(**{"env_id": GAME, **fields})


def test_a_config_accepts_what_its_trainer_supports() -> None:
    assert FullConfig(GAME, advantage="gae", wrappers=["concat"]).advantage == "gae"


def test_a_config_creates_seeds_tasks_and_limits() -> None:
    config = Config(
        GAME,
        seeds=3,
        eval_seeds=2,
        wrappers="react,turn_limit(max_turns=2)",
        horizon="2,4@10",
        retries=1,
    )
    assert (config.train_seeds, config.held_out_seeds) == ([0, 1, 2], [1_000_000, 1_000_001])
    assert config.task(7, 5).wrappers == (("react", {}), ("turn_limit", {"max_turns": 2}))
    assert (config.task(7, 5).seed, config.task(7, 5).index) == (7, 5)
    assert config.limits(0, max_response=64) == Limits(
        max_turns=2, max_response=64, step_deadline=600.0, retries=1
    )
    assert config.limits(10, max_context=512) == Limits(
        max_turns=4, max_context=512, step_deadline=600.0, retries=1
    )
    assert Config(GAME, max_context=100).limits(0, max_context=512).max_context == 100
    assert Config(GAME, max_context=1024).limits(0, max_context=512).max_context == 512, (
        "the engine would reject a longer context"
    )
    assert Config(GAME, max_context=100).limits(0).max_context == 100


def test_a_config_for_several_sequences_rejects_unknown_wrappers() -> None:
    with pytest.raises(UnknownNameError, match="boxed"):
        FullConfig(GAME, wrappers=["boxd"])


def test_eval_env_kwargs_apply_to_evaluation_seeds() -> None:
    config = Config(
        "qa:Sample-v0",
        seeds=3,
        eval_seeds=2,
        env_kwargs={"max_turns": 2},
        eval_env_kwargs={"split": "test", "max_turns": 1},
    )
    assert config.task(2).env_kwargs == {"max_turns": 2}
    assert config.task(1_000_001).env_kwargs == {"max_turns": 1, "split": "test"}
    assert Config("qa:Sample-v0", options={"index": 3}).task(0).options == {"index": 3}


def test_compute_advantages_uses_the_configs_estimator() -> None:
    episodes = run_batch(tasks_for(GAME, range(16)), RandomPlayer())
    seen: list[Any] = []
    plain = Config(GAME, gamma=0.5, advantage="reinforce").compute_advantages(episodes)
    assert plain[0] == pytest.approx(
        [
            0.5 ** (len(e.turns) - 1 - t) * e.rewards[-1]
            for e in episodes[:1]
            for t in range(len(e.turns))
        ]
    )
    Config(GAME).compute_advantages(episodes, gather=lambda value: seen.append(value) or [value])
    assert len(seen) == 1


def test_batch_metrics_add_up_across_ranks() -> None:
    episodes = run_batch(tasks_for(GAME, range(20)), RandomPlayer(), limits=Limits(max_turns=2))
    episodes[0] = replace(episodes[0], stop=StopReason.ENV_ERROR)
    together = BatchMetrics.of(episodes)
    split = BatchMetrics.total(
        [
            BatchMetrics.of(episodes[:1]),
            BatchMetrics.of(episodes[1:7]),
            BatchMetrics.of(episodes[7:]),
        ]
    )
    assert split == together
    means = together.means()
    solved = sum(bool(e.success) for e in episodes[1:])
    assert means["success"] == pytest.approx(solved / 19), (
        "an episode cut by a limit counts as no success"
    )
    assert means["failed"] == pytest.approx(1 / 20)
    assert means["turns"] == pytest.approx(sum(len(e.turns) for e in episodes[1:]) / 19)


def test_advantage_abs_covers_trained_turns_of_all_ranks() -> None:
    episodes = run_batch(tasks_for(GAME, range(4)), RandomPlayer(), limits=Limits(max_turns=2))
    episodes[0] = replace(episodes[0], stop=StopReason.ENV_ERROR)
    turns = [[float(-n - t) for t in range(len(e.turns))] for n, e in enumerate(episodes)]
    sizes = [abs(a) for numbers in turns[1:] for a in numbers]
    parts = [BatchMetrics.of([e], [a]) for e, a in zip(episodes, turns)]
    means = BatchMetrics.total(parts).means()
    assert means["advantage_abs"] == pytest.approx(sum(sizes) / len(sizes))
    first = [abs(numbers[0]) for numbers in turns[1:]]
    assert means["turn/0/advantage_abs"] == pytest.approx(sum(first) / len(first))
    assert "advantage_abs" not in BatchMetrics.of(episodes).means()


def test_batch_metrics_per_turn_and_per_environment_of_a_mixture() -> None:
    mixture = f"1*{GAME} + 1*game:Hangman-v0-easy"
    episodes = run_batch(tasks_for(mixture, range(12)), RandomPlayer())
    means = BatchMetrics.of(episodes).means()
    for env_id in (GAME, "game:Hangman-v0-easy"):
        own = [e for e in episodes if e.component == env_id]
        assert own, "the seeds draw both"
        solved = sum(bool(e.success) for e in own)
        assert means[f"env/{env_id}/success"] == pytest.approx(solved / len(own))
        assert means[f"env/{env_id}/turns"] == sum(len(e.turns) for e in own) / len(own)
        total = sum(sum(e.rewards) for e in own)
        assert means[f"env/{env_id}/return"] == pytest.approx(total / len(own))
    reached = [e for e in episodes if len(e.turns) > 2]
    later = [sum(e.rewards[t:]) for e in reached for t in range(2, min(len(e.turns), 4))]
    assert means["turn/2-3/return"] == pytest.approx(sum(later) / len(later))
    assert not any(name.startswith("env/") for name in BatchMetrics.of(_of_one_env()).means())


def _of_one_env() -> list[Episode]:
    return run_batch(tasks_for(GAME, range(2)), RandomPlayer())


def test_logprob_gap_is_the_mean_and_the_99th_percentile() -> None:
    sampler = [0.0] * 200
    gap = logprob_gap(sampler, [-0.01] * 197 + [0.5, -1.0, 2.0])
    assert gap["logprob_gap"] == pytest.approx((1.97 + 3.5) / 200)
    assert gap["logprob_gap_p99"] == 1.0
    assert logprob_gap([], []) == {}


def test_process_execution_reaches_the_task() -> None:
    assert Config(GAME, execution="process").task(0).execution == "process"
    assert Config(GAME).task(0).execution == "declared"


def test_batch_metrics_of_failed_episodes_have_no_other_means() -> None:
    episodes = [
        replace(e, stop=StopReason.ENV_ERROR)
        for e in run_batch(tasks_for(GAME, range(3)), RandomPlayer())
    ]
    assert BatchMetrics.of(episodes).means() == {"failed": 1.0, "attempts": 1.0}
    assert BatchMetrics.of([]).means() == {}
