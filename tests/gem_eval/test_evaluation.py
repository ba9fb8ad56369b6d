"""Evaluation: its statistics, and runs that resume without losing or repeating an episode."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from project import SOURCES, SUPPORT, clean_env

from gem_core import (
    Env,
    Episode,
    Failure,
    Limits,
    Message,
    RandomPlayer,
    Renderer,
    Sampling,
    ScriptedPlayer,
    ScriptedPolicy,
    StopReason,
    Turn,
    list_envs,
    register,
    run_batch,
    tasks_for,
)
from gem_core.__main__ import main
from gem_core.env.registry import environments
from gem_core.errors import ConfigError, EnvError, PolicyError
from gem_core.policies.players import ExpertPlayer
from gem_core.records.file import RecordWriter, read_episodes, read_header
from gem_core.records.redact import REDACTED
from gem_envs.games.guess_the_number import GuessTheNumber
from gem_eval.evaluation import (
    Plan,
    chosen_envs,
    compare,
    evaluate,
    mean_by_seed,
    pass_at_k,
    pass_hat_k,
    results,
    score,
)
from gem_eval.evaluation.give_up import place_of
from gem_eval.evaluation.scaling import scaling_points

EASY = "game:GuessTheNumber-v0-easy"
SERVER = SUPPORT / "openai_server.py"


def episode(seed: int, reward: float, success: bool | None = None, **more: Any) -> Episode:
    info = {} if success is None else {"success": success}
    turn = Turn((Message("user", "?"),), "!", reward, info=more.pop("info", {}))
    return Episode(
        "test:It-v0",
        seed,
        (turn,),
        more.pop("stop", StopReason.TERMINATED),
        final_info=info,
        **more,
    )


# Statistics.


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (4, 2), (5, 1), (6, 6)])
def test_pass_at_k_and_pass_hat_k_equal_the_mean_over_all_draws(n: int, c: int) -> None:
    outcomes = [i < c for i in range(n)]
    for k in range(1, n + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(d) for d in draws))
        assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(d) for d in draws))


def test_pass_at_k_rejects_k_above_n() -> None:
    with pytest.raises(ConfigError, match="n=2, c=1, k=3"):
        pass_at_k(2, 1, 3)


def test_interval_covers_the_mean_in_about_95_percent_of_trials() -> None:
    rng, hits = random.Random(0), 0
    for _ in range(100):
        estimate = mean_by_seed([rng.gauss(0.3, 1.0) for _ in range(60)])
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        hits += estimate.low <= 0.3 <= estimate.high
    assert 88 <= hits <= 100


def test_bootstrap_resamples_seeds_not_samples() -> None:
    """Eight equal samples per seed give the same interval as one sample per seed."""
    once = score("x", "p", [episode(seed, seed % 2, bool(seed % 2)) for seed in range(10)])
    eight = score(
        "x", "p", [episode(seed, seed % 2, bool(seed % 2)) for seed in range(10) for _ in range(8)]
    )
    assert once.success == eight.success
    assert eight.pass_at[8] == eight.pass_hat[8] == eight.success


def test_single_seed_has_a_mean_but_no_interval() -> None:
    estimate = mean_by_seed([0.5])
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high) == (0.5, None, None)
    assert mean_by_seed([]) is None


def test_score_of_four_episodes_has_the_expected_values() -> None:
    episodes = [
        episode(0, 1.0, True),
        episode(0, 0.0, False, info={"format_error": True}),
        episode(1, 0.5, None, stop=StopReason.TURN_LIMIT, attempts=3),
        episode(1, 0.0, None, stop=StopReason.POLICY_ERROR),
    ]
    result = score("test:It-v0", "p", episodes)
    assert result.mean_return is not None
    assert result.success is not None
    assert (result.episodes, result.seeds, result.failed, result.errors) == (4, 2, 1, 2)
    assert (result.mean_return.value, result.success.value) == (0.5, 0.25)
    # only seed 0 has two samples that did not fail
    assert (result.pass_at[2].value, result.pass_at[2].seeds) == (1.0, 1)
    assert result.pass_hat[2].value == 0.0
    assert (result.format_errors, result.tokens) == (pytest.approx(1 / 3), None)
    assert result.stops == {"policy_error": 1, "terminated": 2, "turn_limit": 1}


def test_success_is_none_when_the_environment_does_not_report_it() -> None:
    result = score("x", "p", [episode(0, 1.0), episode(1, 0.0)])
    assert result.success is None
    assert result.pass_at == {}


# Comparing.


def test_paired_difference_detects_what_two_means_cannot() -> None:
    """Seeds differ by 10, the players by 0.1 on each seed."""
    first = [episode(seed, 10.0 * (seed % 2), True) for seed in range(20)]
    second = [episode(seed, 10.0 * (seed % 2) + 0.1, True) for seed in range(22)]
    (difference,) = compare(first, second, "return")
    assert difference.difference.value == pytest.approx(0.1)
    assert difference.verdict == "better"
    assert difference.unpaired == 2
    assert compare(first, first, "return")[0].verdict == "not significantly different"


def test_compare_rejects_evaluations_without_a_common_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, first in (("a", "0"), ("b", "100")):
        args = ["--seeds", "2", "--first-seed", first, "--no-bounds", "--quiet"]
        args += ["--out", str(tmp_path / name)]
        assert main(["eval", EASY, "--model", "random", *args]) == 0
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "no seed in common" in capsys.readouterr().err


def write_record(path: Path, *episodes: Episode) -> str:
    with RecordWriter(path) as record:
        for each in episodes:
            record.write(each)
    return str(path)


def test_compare_by_success_fails_when_neither_side_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_record(tmp_path / "a.jsonl", *(episode(seed, 1.0) for seed in range(3)))
    second = write_record(tmp_path / "b.jsonl", *(episode(seed, 0.5) for seed in range(3)))
    assert main(["compare", first, second, "--metric", "success"]) == 2
    error = capsys.readouterr().err
    assert f"neither {first} nor {second} reports success on test:It-v0" in error
    assert "--metric return" in error
    assert "in common" not in error
    other = write_record(tmp_path / "c.jsonl", episode(9, 1.0))
    assert main(["compare", first, other, "--metric", "success"]) == 2
    assert "no seed in common" in capsys.readouterr().err


def test_compare_names_the_side_that_does_not_report_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_record(tmp_path / "a.jsonl", *(episode(seed, 1.0, True) for seed in range(3)))
    second = write_record(tmp_path / "b.jsonl", *(episode(seed, 1.0) for seed in range(3)))
    assert main(["compare", first, second]) == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: {second} does not report success on test:It-v0;")
    assert main(["compare", first, first]) == 0
    assert capsys.readouterr().err == ""


def test_fail_if_worse_fails_if_an_environment_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [episode(seed, 1.0) for seed in range(8)]
    other = [replace(e, env_id="other:Env-v0") for e in shared]
    first = write_record(tmp_path / "a.jsonl", *shared, *other)
    second = write_record(tmp_path / "b.jsonl", *shared)
    assert main(["compare", first, second, "--metric", "return"]) == 0
    assert main(["compare", first, second, "--metric", "return", "--fail-if-worse"]) == 1
    assert "note: other:Env-v0 was not compared" in capsys.readouterr().err


def test_fail_if_worse_sets_the_exit_code_and_rejects_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_record(tmp_path / "a.jsonl", *(episode(seed, 1.0) for seed in range(8)))
    second = write_record(tmp_path / "b.jsonl", *(episode(seed, 0.5) for seed in range(8)))
    returns = ["--metric", "return", "--fail-if-worse"]
    assert main(["compare", first, second, *returns]) == 1
    assert main(["compare", second, first, *returns]) == 0
    assert main(["compare", first, second, "--metric", "turns", "--fail-if-worse"]) == 2
    assert "does not support --metric turns" in capsys.readouterr().err


# Baseline players.


@pytest.mark.parametrize(
    "id",
    [
        *(f"game:{g}-v0-easy" for g in ("Wordle", "Sokoban", "Hangman")),
        "qa:Sample-v0",
        "code:Sample-v0",
    ],
)
def test_expert_solves_every_episode(id: str) -> None:
    episodes = run_batch(tasks_for(id, range(3)), ExpertPlayer(), concurrency=3)
    assert [e.success for e in episodes] == [True] * 3


def test_expert_restarts_with_each_episode_of_an_environment() -> None:
    episodes = run_batch(tasks_for(EASY, range(6)), ExpertPlayer(), concurrency=1)
    assert all(e.success for e in episodes)


def test_expert_uses_the_action_format_and_plays_mixtures() -> None:
    tasks = tasks_for(f"1*{EASY} + 1*game:Wordle-v0-easy", range(6), wrappers="react")
    episodes = run_batch(tasks, ExpertPlayer())
    assert all(e.success for e in episodes)
    assert len({e.component for e in episodes}) == 2


def test_random_player_samples_differ_and_are_reproducible(tmp_path: Path) -> None:
    plan = Plan("random", (EASY,), seeds=4, samples=4)
    first, second = (
        evaluate(plan, RandomPlayer(), tmp_path / name) for name in ("a.jsonl", "b.jsonl")
    )
    actions = [[t.action for t in e.turns] for e in first]
    assert actions == [[t.action for t in e.turns] for e in second]
    assert any(actions[i] != actions[i + 1] for i in range(0, 16, 4))


# Running and resuming.


def test_evaluate_does_not_replay_a_finished_plan(tmp_path: Path) -> None:
    plan = Plan("random", (EASY, "game:Wordle-v0-easy"), seeds=3, samples=2)
    first = evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl")
    replayed: list[Episode] = []
    second = evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl", on_episode=replayed.append)
    assert replayed == []
    assert [(e.index, e.seed) for e in second] == [(e.index, e.seed) for e in first]
    assert len(list(read_episodes(tmp_path / "r.jsonl"))) == plan.size


def test_evaluate_rejects_the_record_of_another_plan(tmp_path: Path) -> None:
    path, plan = tmp_path / "r.jsonl", Plan("random", (EASY,), seeds=3)
    evaluate(Plan("random", (EASY,), seeds=2), RandomPlayer(), path)
    with pytest.raises(ConfigError, match=r"seeds was 2 and is now 3.*--overwrite"):
        evaluate(plan, RandomPlayer(), path)
    assert len(evaluate(plan, RandomPlayer(), path, overwrite=True)) == 3


class WithLogin(GuessTheNumber):
    """A game that takes credentials."""

    option_names = frozenset({"login"})

    def __init__(self, headers: Mapping[str, str] | None = None, password: str = "") -> None:
        super().__init__()


@pytest.fixture
def env_with_login() -> Iterator[str]:
    register("test:WithLogin-v0", WithLogin)
    yield "test:WithLogin-v0"
    environments.remove("test:WithLogin-v0")


SECRETS = ("abcdefghijklmnop1234", "hunter2pass", "abcd-1234-secret", "correct-horse")
SECRET_HEADER = "Bearer abcdefghijklmnop1234"
SECRET_ARGS = json.dumps(
    {"headers": {"Authorization": SECRET_HEADER, "A": "b"}, "password": "correct-horse"}
)
SECRET_TOOLS = (
    "retrieval(url='http://ann:hunter2pass@127.0.0.1:1', "
    f"headers={{'Authorization':'{SECRET_HEADER}'}})"
)


def test_eval_with_secrets_redacts_its_output_and_resumes(
    env_with_login: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", env_with_login, "--model", "random", "--seeds", "2", "--quiet", "--json"]
    command += ["--out", str(tmp_path)]
    command += ["--options", '{"login": {"token": "abcd-1234-secret", "user": "ann"}}']
    if find_spec("httpx") is not None:
        command += ["--tools", SECRET_TOOLS]
    assert main([*command, "--args", SECRET_ARGS]) == 0
    assert main([*command, "--args", SECRET_ARGS]) == 0
    other_password = SECRET_ARGS.replace("correct-horse", "another-horse")
    assert main([*command, "--args", other_password]) == 0, "a new secret is not a new evaluation"
    output = capsys.readouterr()
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {"episodes.jsonl", "summary.json"} <= set(files)
    for name, text in {**files, "stdout": output.out, "stderr": output.err}.items():
        assert not [secret for secret in SECRETS if secret in text], name
    (plan,) = json.loads(files["summary.json"])["plans"]
    assert plan["env_kwargs"] == {
        "headers": {"Authorization": REDACTED, "A": REDACTED},
        "password": REDACTED,
    }
    assert plan["options"] == {"login": {"token": REDACTED, "user": "ann"}}
    other_user = [part.replace('"ann"', '"bob"') for part in command]
    assert main([*other_user, "--args", SECRET_ARGS]) == 2
    assert "another evaluation: options was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrappers", "redacted"),
    [
        ("boxed,turn_limit( max_turns=3 )", "boxed,turn_limit( max_turns=3 )"),
        (
            "turn_limit(max_turns=3),"
            "mcp(command='server', env={'SERVICE_TOKEN': 'abcd-1234-secret', 'LANG': 'C'})",
            "turn_limit(max_turns=3), "
            f"mcp(command='server', env={{'SERVICE_TOKEN': '{REDACTED}', 'LANG': 'C'}})",
        ),
        (
            SECRET_TOOLS,
            f"retrieval(url='http://{REDACTED}@127.0.0.1:1', "
            f"headers={{'Authorization': '{REDACTED}'}})",
        ),
    ],
)
def test_plan_redacts_secrets_in_wrappers_and_request(
    tmp_path: Path, wrappers: str, redacted: str
) -> None:
    plan = Plan(
        "p", (EASY,), seeds=1, wrappers=wrappers, request='{"api_key": "correct-horse", "n": 1}'
    )
    assert plan.as_json()["wrappers"] == redacted
    assert json.loads(plan.as_json()["request"]) == {"api_key": REDACTED, "n": 1}
    with RecordWriter(tmp_path / "r.jsonl", meta={"plan": plan.as_json()}):
        pass
    plan.check_same(read_header(tmp_path / "r.jsonl")["meta"]["plan"], "r.jsonl")


def test_next_run_replays_failed_episodes(tmp_path: Path) -> None:
    plan, failing = Plan("p", (EASY,), seeds=4), True

    def act(env: Any, observation: str) -> str:
        if failing and env.seed % 2:
            raise RuntimeError("out of order")
        return str(env.sample_action())

    first = evaluate(plan, ScriptedPlayer(act), tmp_path / "r.jsonl")
    assert [e.failed for e in first] == [False, True, False, True]
    failing = False
    replayed: list[Episode] = []
    second = evaluate(plan, ScriptedPlayer(act), tmp_path / "r.jsonl", on_episode=replayed.append)
    assert sorted(e.index for e in replayed) == [1, 3]
    assert not any(e.failed for e in second)
    assert [e.index for e in results(tmp_path / "r.jsonl")] == [0, 1, 2, 3]


def test_run_ends_early_when_the_policy_always_fails(tmp_path: Path) -> None:
    def act(env: Any, observation: str) -> str:
        raise RuntimeError("no such model")

    with pytest.raises(PolicyError, match=r"5 episodes in a row failed.*no such model"):
        evaluate(
            Plan("p", (EASY,), seeds=1000),
            ScriptedPlayer(act),
            tmp_path / "r.jsonl",
            give_up=5,
            concurrency=1,
        )


class Broken(Env):
    """An environment that fails in every step, inside a function that it calls."""

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "Well?", {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(json.loads("{")), True, False, {}  # fails here

    def sample_action(self) -> str:
        return "!"


class ReturnsNan(Broken):
    """An environment whose rewards are not numbers."""

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float("nan"), True, False, {}


@pytest.fixture
def broken() -> Iterator[None]:
    register("test:Broken-v0", Broken)
    register("test:ReturnsNan-v0", ReturnsNan)
    yield
    environments.remove("test:Broken-v0")
    environments.remove("test:ReturnsNan-v0")


@pytest.mark.usefixtures("broken")
def test_run_ends_early_when_one_environment_always_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", "test:Broken-v0", EASY, "--model", "random", "--seeds", "60", "--quiet"]
    args += ["--concurrency", "1", "--out", str(tmp_path)]
    assert main(args) == 2
    error = capsys.readouterr().err
    line = next(
        i for i, x in enumerate(Path(__file__).read_text().splitlines(), 1) if "fails here" in x
    )
    assert (
        "20 episodes of test:Broken-v0 in a row failed, the last with: JSONDecodeError in" in error
    )
    assert f"(in {__file__}, line {line}, on_step). `gem-rl check test:Broken-v0`" in error
    assert f"Finished episodes are in {tmp_path}" in error
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) == 20


def test_place_of_a_failure_in_another_process_is_in_the_environment() -> None:
    lines = [
        ("/x/gem_execution/remote.py", "perform"),
        ("/x/gem_core/env/base.py", "step"),
        ("/home/me/mine.py", "on_step"),
        ("/x/json/decoder.py", "decode"),
        ("/x/gem_core/rollout/guard.py", "call"),
        ("/x/gem_execution/process.py", "ask"),
    ]
    frames = [f'  File "{file}", line {i}, in {name}' for i, (file, name) in enumerate(lines)]
    assert place_of(Failure("E", "m", "step", "\n".join(frames))) == (
        " (in /home/me/mine.py, line 2, on_step)"
    )
    assert place_of(Failure("E", "m", "step", "\n".join(frames[-2:]))) == ""


@pytest.mark.usefixtures("broken")
def test_run_ends_early_when_the_rewards_are_not_numbers(tmp_path: Path) -> None:
    plan = Plan("random", (EASY, "test:ReturnsNan-v0"), seeds=60)
    with pytest.raises(EnvError, match="3 episodes of test:ReturnsNan-v0 in a row failed.*nan"):
        evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl", give_up=3)


class Hangs(Broken):
    """An environment that does not return from its first step."""

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(60.0)
        return "", 0.0, True, False, {}


def test_eval_fails_an_episode_whose_step_takes_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("test:Hangs-v0", Hangs)
    try:
        args = ["eval", "test:Hangs-v0", "--model", "random", "--seeds", "1", "--out"]
        assert main([*args, str(tmp_path), "--quiet", "--step-deadline", "2"]) == 1
    finally:
        environments.remove("test:Hangs-v0")
    assert "step took over 2 s" in capsys.readouterr().err


@pytest.mark.parametrize(("of_plan", "of_call"), [(2, 99), (99, 2), (None, 2), (2, None)])
def test_smaller_turn_limit_of_plan_and_call_holds(
    tmp_path: Path, of_plan: int | None, of_call: int | None
) -> None:
    plan = Plan("random", ("game:Sudoku-v0-easy",), seeds=3, max_turns=of_plan)
    limits = Limits(max_turns=of_call, retries=1)
    episodes = evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl", limits=limits)
    assert {len(e.turns) for e in episodes} == {2}
    (point,) = scaling_points([score("x", "random", episodes, 2)])
    assert (point.compute, point.unit, point.k) == (2.0, "turns", 1)


def test_scaling_does_not_mix_success_and_return_of_an_environment() -> None:
    """Under the lower limit no episode reports success; its return is not pass@k."""
    cut = score("x", "p", [episode(seed, 0.7) for seed in range(3)], 1)
    full = score("x", "p", [episode(seed, 1.0, True) for seed in range(3)], 4)
    never = score("y", "p", [episode(seed, 0.7) for seed in range(3)], 1)
    points = scaling_points([cut, full, never], "episodes")
    assert [(p.env_id, p.max_turns, p.judged, p.unit) for p in points] == [
        ("x", 4, True, "episodes"),
        ("y", 1, False, "episodes"),
    ]
    with pytest.raises(ConfigError, match="one of tokens, turns, episodes"):
        scaling_points([full], "hours")


def test_chosen_envs_resolves_patterns_and_mixtures() -> None:
    assert chosen_envs([EASY, "game:Wordle*", EASY]) == (EASY, *list_envs("game:Wordle*"))
    assert chosen_envs(["2*game:Wordle-v0 + 1*game:Hangman-v0"]) == (
        "2*game:Wordle-v0 + 1*game:Hangman-v0",
    )
    with pytest.raises(LookupError, match="did you mean"):
        chosen_envs(["game:GuessTheNumbr-v0"])


# The command, against a server with realistic failures.


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> str:
        # a file, because an unread pipe would fill up with the logged requests
        log = tmp_path_factory.mktemp("server") / "log"
        with log.open("wb") as stream:
            started.append(subprocess.Popen([sys.executable, str(SERVER), *args], stdout=stream))
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        return f"http://127.0.0.1:{log.read_text().split()[0]}/v1"

    yield start
    for process in started:
        process.kill()
        process.wait()


def command(url: str, out: Path, *more: str) -> list[str]:
    model = ["--model", "plain", "--server", url, "--sampling-seed", "7", "--concurrency", "4"]
    episodes = [EASY, "game:Hangman-v0-easy", "--seeds", "6", "--samples", "4"]
    return ["eval", *episodes, *model, "--out", str(out), *more]


def test_eval_recovers_from_server_failures_and_reports_them(
    server: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = server("--trouble", "busy,drop,broken", "--key", "a-secret-key-of-mine")
    monkeypatch.setenv("MY_SERVER_KEY", "a-secret-key-of-mine")
    more = ["--api-key-env", "MY_SERVER_KEY", "--seeds", "2", "--samples", "1"]
    assert main(command(url, tmp_path, *more)) == 0
    output = capsys.readouterr()
    assert "requests retried after server failures:" in output.err
    assert "x 429" in output.err
    assert "x 500" in output.err
    files = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "a-secret-key-of-mine" not in output.out + output.err + files
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(s["env_id"], s["player"]) for s in summary["scores"][:3]] == [
        (EASY, "random"),
        (EASY, "plain"),
        (EASY, "expert"),
    ]
    assert (tmp_path / "table.txt").read_text().splitlines()[0].startswith("ENVIRONMENT")


def test_eval_ends_with_one_line_when_the_key_is_wrong(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server("--key", "another-key")
    assert main(command(url, tmp_path, "--quiet")) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "401" in error
    assert "api_key_env" in error


def test_killed_and_resumed_run_writes_the_same_bytes(server: Any, tmp_path: Path) -> None:
    """The server's answers depend on prompt and seed only.

    So a run that was killed three times must write the same table as an uninterrupted run, with
    no episode lost or repeated.
    """
    url = server()
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    env = clean_env(PYTHONPATH=os.pathsep.join(SOURCES))
    gem = [sys.executable, "-m", "gem_core"]
    subprocess.run([*gem, *command(url, uninterrupted)], env=env, capture_output=True, check=True)
    slow = server("--trouble", "busy")
    record, kills, size = killed / "episodes.jsonl", 0, 0
    while kills < 3:
        process = subprocess.Popen(
            [*gem, *command(slow, killed)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if record.exists() and record.stat().st_size > size + 2000:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills, size = kills + 1, record.stat().st_size
    assert 0 < len(list(read_episodes(record))) < 48, "the run ended before it could be killed"
    subprocess.run([*gem, *command(url, killed)], env=env, capture_output=True, check=True)
    for name in ("table.txt", "summary.json"):
        assert (killed / name).read_bytes() == (uninterrupted / name).read_bytes()
    assert sorted(e.index for e in read_episodes(record)) == list(range(48))


def test_ctrl_c_keeps_the_finished_episodes(server: Any, tmp_path: Path) -> None:
    url = server("--trouble", "busy,busy")
    env = clean_env(PYTHONPATH=os.pathsep.join(SOURCES))
    process = subprocess.Popen(
        [sys.executable, "-m", "gem_core", *command(url, tmp_path)],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    record = tmp_path / "episodes.jsonl"
    while process.poll() is None and not (record.exists() and record.stat().st_size > 3000):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "Run the same command to resume" in error
    assert all(not e.failed for e in read_episodes(record))


def test_exit_code_reports_whether_the_score_reaches_the_minimum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["eval", EASY, "--model", "random", "--seeds", "8", "--no-bounds", "--quiet"]
    base += ["--out", str(tmp_path)]
    assert main([*base, "--min-success", "0.01"]) == 0
    assert main([*base, "--min-success", "1.0"]) == 1
    assert "expected at least 1.0" in capsys.readouterr().err
    assert main([*base, "--min-return", "2"]) == 1
    assert main([*base, "--max-turns", "x"]) == 2
    capsys.readouterr()
    assert main([*base, "--min-success", "30"]) == 2
    assert "--min-success must be from 0 to 1" in capsys.readouterr().err


class WithoutBaselines(Env):
    """Environment that neither baseline player can play."""

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "Well?", {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {}


class NoExpert(WithoutBaselines):
    """Environment whose expert has no action."""

    def sample_action(self) -> str:
        return "!"

    def expert(self) -> Iterator[str]:
        return iter(())


@pytest.mark.parametrize("seeds", [1, 2])
def test_eval_prints_the_first_failure_of_a_baseline(
    seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("test:NoExpert-v0", NoExpert)
    command = ["eval", "test:NoExpert-v0", "--seeds", str(seeds), "--quiet"]
    failed = f"{seeds} episode{'s' * (seeds > 1)} failed; the first failure: test:NoExpert-v0, seed"
    try:
        assert main([*command, "--model", "random", "--out", str(tmp_path / "a")]) == 0
        error = capsys.readouterr().err
        assert f"gem-rl: baseline expert: {failed}" in error
        assert "ran out of actions" in error
        assert main([*command, "--model", "expert", "--out", str(tmp_path / "b")]) == 1
    finally:
        environments.remove("test:NoExpert-v0")
    assert f"gem-rl: {failed}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["eval", EASY], ["suite", "gem-eval-v1", "--families", "game:Mastermind-v0-easy"]]
)
def test_out_must_be_a_folder(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lock.py"
    file.touch()
    for out in (file, file / "below"):
        assert main([*command, "--model", "random", "--out", str(out)]) == 2
        expected = f"gem-rl: error: --out must be a folder, but {file} is a file\n"
        assert capsys.readouterr().err == expected


def test_each_list_of_environments_has_its_own_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for envs in (
        [EASY],
        ["game:Hangman-v0-easy"],
        [EASY, "game:Hangman-v0-easy"],
        ["game:*-easy"],
        ["game:*-v0"],
    ):
        command = ["eval", *envs, "--model", "random", "--seeds", "1", "--no-bounds", "--quiet"]
        assert main(command) == main(command) == 0  # the second run resumes the first
    names = sorted(
        path.parent.name
        for path in (tmp_path / "runs" / "eval" / "random").glob("*/episodes.jsonl")
    )
    easy, hangman = "game-GuessTheNumber-v0-easy", "game-Hangman-v0-easy"
    assert {easy, hangman, f"{easy}+{hangman}"} < set(names)
    assert len(names) == 5
    assert max(map(len, names)) < 100


@pytest.mark.parametrize(("model", "method"), [("random", "sample_action"), ("expert", "expert")])
def test_eval_rejects_an_unsupported_baseline_player_before_the_first_episode(
    model: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id, out = "test:WithoutBaselines-v0", tmp_path / "out"
    register(env_id, WithoutBaselines)
    try:
        assert main(["eval", EASY, env_id, "--model", model, "--out", str(out)]) == 2
    finally:
        environments.remove(env_id)
    error = capsys.readouterr().err
    assert f"{env_id} does not support --model {model}: WithoutBaselines has no {method}()" in error
    assert not out.exists()


def test_several_turn_limits_run_several_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", EASY, "--model", "random", "--seeds", "5", "--samples", "2", "--quiet"]
    assert main([*args, "--max-turns", "1,4", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "TURNS<=" in out
    points = json.loads((tmp_path / "summary.json").read_text())["scaling"]
    assert [(p["max_turns"], p["k"]) for p in points] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    folders = [str(tmp_path / "turns-1"), str(tmp_path / "turns-4")]
    assert main(["compare", *folders, "--metric", "turns"]) == 0


def test_run_does_not_resume_with_another_environment_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "lock.py"
    source.write_text(
        "from gem_core import Env\n\n\nclass Lock(Env):\n"
        "    action_example = 'a'\n\n"
        "    def on_reset(self, options):\n        return 'guess', {}\n\n"
        "    def on_step(self, action):\n        return 'done', 1.0, True, False, {}\n\n"
        "    def sample_action(self):\n        return 'a'\n"
    )
    command = ["eval", f"{source}:Lock", "--model", "random", "--seeds", "2", "--no-bounds"]
    command += ["--quiet", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and main(command) == 0
    source.write_text(source.read_text().replace("1.0", "0.5"))
    assert main(command) == 2
    assert "another evaluation: sources was" in capsys.readouterr().err


@pytest.mark.parametrize(("of_plan", "of_model"), [(160, None), (160, 4000), (4000, 160)])
def test_smaller_context_limit_of_plan_and_model_holds(
    tmp_path: Path, of_plan: int, of_model: int | None
) -> None:
    tokenizer = ByteTokenizer("chatml")
    policy = ScriptedPolicy(lambda prompt: r"\boxed{1}", tokenizer)
    plan = Plan("scripted", (EASY,), 4, max_context=of_plan)
    limits = Limits(max_context=of_model)
    path = tmp_path / "record.jsonl"
    played = evaluate(plan, policy, path, renderer=Renderer(tokenizer), limits=limits)
    assert {e.stop for e in played} == {StopReason.CONTEXT_FULL}


def test_plan_rejects_a_seed_in_its_sampling() -> None:
    with pytest.raises(ConfigError, match=r"Plan\(sampling_seed=7\)"):
        Plan("m", (EASY,), 1, sampling=Sampling(seed=7))


def test_run_does_not_resume_with_another_renderer(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer("chatml")
    policy = ScriptedPolicy(lambda prompt: r"\boxed{1}", tokenizer)
    plan, path = Plan("scripted", (EASY,), 1), tmp_path / "record.jsonl"
    kwargs = {"enable_thinking": False}
    evaluate(plan, policy, path, renderer=Renderer(tokenizer, template_kwargs=kwargs))
    evaluate(plan, policy, path, renderer=Renderer(tokenizer, template_kwargs=kwargs))
    with pytest.raises(ConfigError, match=r"template_kwargs was {'enable_thinking': False}"):
        evaluate(plan, policy, path, renderer=Renderer(tokenizer))
    with pytest.raises(ConfigError, match="history was 'append' and is now 'template'"):
        evaluate(plan, policy, path, renderer=Renderer(tokenizer, "template"))


def test_run_resumes_a_record_without_template_settings(tmp_path: Path) -> None:
    plan, path = Plan("random", (EASY,), 1), tmp_path / "record.jsonl"
    evaluate(plan, RandomPlayer(), path)
    text = path.read_text()
    assert '"history":"append","template_kwargs":{}' in text
    path.write_text(text.replace(',"history":"append","template_kwargs":{}', ""))
    assert len(evaluate(plan, RandomPlayer(), path)) == 1


def test_plan_names_an_environment_file_that_is_missing(tmp_path: Path) -> None:
    plan = Plan("random", (f"{tmp_path}/missing.py:Lock",), 1)
    with pytest.raises(ConfigError, match="cannot read the environment's file .*missing.py"):
        plan.as_json()
