"""Evaluation: statistics by hand, resuming without losing or repeating an episode, and a table that depends on neither."""

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
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from project import SOURCES, SUPPORT, clean_env

from gem_core import (
    Env,
    Episode,
    Limits,
    Message,
    RandomPlayer,
    ScriptedPlayer,
    StopReason,
    Turn,
    list_envs,
    register,
    run_batch,
    tasks_for,
)
from gem_core.__main__ import main
from gem_core.env.registry import environments
from gem_core.errors import ConfigError, PolicyError
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
def test_pass_at_k_and_pass_hat_k_are_the_means_over_all_draws(n: int, c: int) -> None:
    outcomes = [i < c for i in range(n)]
    for k in range(1, n + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(n, c, k) == pytest.approx(fmean(any(d) for d in draws))
        assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(d) for d in draws))


def test_more_samples_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="n=2, c=1, k=3"):
        pass_at_k(2, 1, 3)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    chances, hits = random.Random(0), 0
    for _ in range(100):
        found = mean_by_seed([chances.gauss(0.3, 1.0) for _ in range(60)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.3 <= found.high
    assert 88 <= hits <= 100


def test_the_bootstrap_draws_seeds_and_not_samples() -> None:
    """Eight samples of a seed that agree are one piece of evidence: the interval is that of one sample per seed."""
    once = score("x", "p", [episode(seed, seed % 2, bool(seed % 2)) for seed in range(10)])
    eight = score(
        "x", "p", [episode(seed, seed % 2, bool(seed % 2)) for seed in range(10) for _ in range(8)]
    )
    assert once.success == eight.success
    assert eight.pass_at[8] == eight.pass_hat[8] == eight.success


def test_one_seed_has_a_mean_and_no_interval() -> None:
    found = mean_by_seed([0.5])
    assert found is not None
    assert (found.value, found.low, found.high) == (0.5, None, None)
    assert mean_by_seed([]) is None


def test_a_score_by_hand() -> None:
    played = [
        episode(0, 1.0, True),
        episode(0, 0.0, False, info={"format_error": True}),
        episode(1, 0.5, None, stop=StopReason.TURN_LIMIT, attempts=3),
        episode(1, 0.0, None, stop=StopReason.POLICY_ERROR),
    ]
    found = score("test:It-v0", "p", played)
    assert found.mean_return is not None
    assert found.success is not None
    assert (found.episodes, found.seeds, found.failed, found.errors) == (4, 2, 1, 2)
    assert (found.mean_return.value, found.success.value) == (0.5, 0.25)
    assert (found.pass_at[2].value, found.pass_at[2].seeds) == (
        1.0,
        1,
    )  # only seed 0 has two known samples
    assert found.pass_hat[2].value == 0.0
    assert (found.format_errors, found.tokens) == (pytest.approx(1 / 3), None)
    assert found.stops == {"policy_error": 1, "terminated": 2, "turn_limit": 1}


def test_an_environment_that_does_not_say_what_success_is_has_none() -> None:
    found = score("x", "p", [episode(0, 1.0), episode(1, 0.0)])
    assert found.success is None
    assert found.pass_at == {}


# Comparing.


def test_a_paired_difference_sees_what_two_means_do_not() -> None:
    """Seeds differ by 10, the players by 0.1 on each of them."""
    first = [episode(seed, 10.0 * (seed % 2), True) for seed in range(20)]
    second = [episode(seed, 10.0 * (seed % 2) + 0.1, True) for seed in range(22)]
    (found,) = compare(first, second, "return")
    assert found.difference.value == pytest.approx(0.1)
    assert found.verdict == "better"
    assert found.unpaired == 2
    assert compare(first, first, "return")[0].verdict == "same"


def test_evaluations_without_a_start_in_common_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, first in (("a", "0"), ("b", "100")):
        more = [
            "--seeds",
            "2",
            "--no-bounds",
            "--quiet",
            "--out",
            str(tmp_path / name),
            "--first-seed",
            first,
        ]
        assert main(["eval", EASY, "--model", "random", *more]) == 0
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "no start in common" in capsys.readouterr().err


def recorded(path: Path, *episodes: Episode) -> str:
    with RecordWriter(path) as record:
        for each in episodes:
            record.write(each)
    return str(path)


def test_a_comparison_by_success_that_nobody_reports_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = recorded(tmp_path / "a.jsonl", *(episode(seed, 1.0) for seed in range(3)))
    second = recorded(tmp_path / "b.jsonl", *(episode(seed, 0.5) for seed in range(3)))
    assert main(["compare", first, second, "--metric", "success"]) == 2
    said = capsys.readouterr().err
    assert f"neither {first} nor {second} reports success on test:It-v0" in said
    assert "--metric return" in said
    assert "in common" not in said
    other = recorded(tmp_path / "c.jsonl", episode(9, 1.0))
    assert main(["compare", first, other, "--metric", "success"]) == 2
    assert "no start in common" in capsys.readouterr().err


def test_a_comparison_names_the_side_that_reports_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = recorded(tmp_path / "a.jsonl", *(episode(seed, 1.0, True) for seed in range(3)))
    second = recorded(tmp_path / "b.jsonl", *(episode(seed, 1.0) for seed in range(3)))
    assert main(["compare", first, second]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"note: {second} reports no success on test:It-v0, so that each of its episodes counts as none"
    ]
    assert main(["compare", first, first]) == 0
    assert capsys.readouterr().err == ""


# Floor and ceiling.


@pytest.mark.parametrize(
    "id",
    [
        *(f"game:{g}-v0-easy" for g in ("Wordle", "Sokoban", "Hangman")),
        "qa:Sample-v0",
        "code:Sample-v0",
    ],
)
def test_an_expert_by_name_solves_what_it_plays(id: str) -> None:
    played = run_batch(tasks_for(id, range(3)), ExpertPlayer(), concurrency=3)
    assert [e.success for e in played] == [True] * 3


def test_an_expert_starts_anew_with_each_episode_of_one_environment() -> None:
    played = run_batch(tasks_for(EASY, range(6)), ExpertPlayer(), concurrency=1)
    assert all(e.success for e in played)


def test_an_expert_speaks_the_action_format_and_finds_its_way_in_a_mixture() -> None:
    tasks = tasks_for(f"1*{EASY} + 1*game:Wordle-v0-easy", range(6), wrappers="react")
    played = run_batch(tasks, ExpertPlayer())
    assert all(e.success for e in played)
    assert len({e.component for e in played}) == 2


def test_samples_of_a_random_player_differ_and_repeat(tmp_path: Path) -> None:
    plan = Plan("random", (EASY,), seeds=4, samples=4)
    first, second = (
        evaluate(plan, RandomPlayer(), tmp_path / name) for name in ("a.jsonl", "b.jsonl")
    )
    actions = [[t.action for t in e.turns] for e in first]
    assert actions == [[t.action for t in e.turns] for e in second]
    assert any(actions[i] != actions[i + 1] for i in range(0, 16, 4))


# Playing and going on.


def test_a_plan_is_played_once_and_its_record_is_kept(tmp_path: Path) -> None:
    plan = Plan("random", (EASY, "game:Wordle-v0-easy"), seeds=3, samples=2)
    first = evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl")
    again: list[Episode] = []
    second = evaluate(plan, RandomPlayer(), tmp_path / "r.jsonl", on_episode=again.append)
    assert again == []
    assert [(e.index, e.seed) for e in second] == [(e.index, e.seed) for e in first]
    assert len(list(read_episodes(tmp_path / "r.jsonl"))) == plan.size


def test_another_plan_does_not_mix_into_a_record(tmp_path: Path) -> None:
    evaluate(Plan("random", (EASY,), seeds=2), RandomPlayer(), tmp_path / "r.jsonl")
    with pytest.raises(ConfigError, match=r"seeds was 2, and is now 3.*--overwrite"):
        evaluate(Plan("random", (EASY,), seeds=3), RandomPlayer(), tmp_path / "r.jsonl")
    assert (
        len(
            evaluate(
                Plan("random", (EASY,), seeds=3),
                RandomPlayer(),
                tmp_path / "r.jsonl",
                overwrite=True,
            )
        )
        == 3
    )


class Behind(GuessTheNumber):
    """A game behind a server that wants to know who is there."""

    option_names = frozenset({"login"})

    def __init__(self, headers: Mapping[str, str] | None = None, password: str = "") -> None:
        super().__init__()


@pytest.fixture
def behind() -> Iterator[str]:
    register("test:Behind-v0", Behind)
    yield "test:Behind-v0"
    environments.remove("test:Behind-v0")


SECRETS = ("abcdefghijklmnop1234", "hunter2pass", "abcd-1234-secret", "correct-horse")
SECRET_ARGS = '{"headers": {"Authorization": "Bearer abcdefghijklmnop1234", "A": "b"}, "password": "correct-horse"}'
SECRET_TOOLS = "retrieval(url='http://ann:hunter2pass@127.0.0.1:1', headers={'Authorization':'Bearer abcdefghijklmnop1234'})"


def test_an_evaluation_with_secrets_writes_none_and_goes_on(
    behind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "eval",
        behind,
        "--model",
        "random",
        "--seeds",
        "2",
        "--quiet",
        "--json",
        "--out",
        str(tmp_path),
    ]
    command += ["--options", '{"login": {"token": "abcd-1234-secret", "user": "ann"}}']
    if find_spec("httpx") is not None:
        command += ["--tools", SECRET_TOOLS]
    assert main([*command, "--args", SECRET_ARGS]) == 0
    assert main([*command, "--args", SECRET_ARGS]) == 0
    assert (
        main([*command, "--args", SECRET_ARGS.replace("correct-horse", "another-horse")]) == 0
    )  # a key may change
    told = capsys.readouterr()
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {"episodes.jsonl", "summary.json"} <= set(written)
    for name, text in {**written, "stdout": told.out, "stderr": told.err}.items():
        assert not [secret for secret in SECRETS if secret in text], name
    (plan,) = json.loads(written["summary.json"])["plans"]
    assert plan["env_kwargs"] == {
        "headers": {"Authorization": REDACTED, "A": "b"},
        "password": REDACTED,
    }
    assert plan["options"] == {"login": {"token": REDACTED, "user": "ann"}}
    assert main([*command, "--args", SECRET_ARGS.replace('"b"', '"c"')]) == 2
    assert "another evaluation: env_kwargs was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrappers", "shown"),
    [
        ("boxed,turn_limit( max_turns=3 )", "boxed,turn_limit( max_turns=3 )"),
        (
            "turn_limit(max_turns=3),mcp(command='server', env={'SERVICE_TOKEN': 'abcd-1234-secret', 'LANG': 'C'})",
            f"turn_limit(max_turns=3), mcp(command='server', env={{'SERVICE_TOKEN': '{REDACTED}', 'LANG': 'C'}})",
        ),
        (
            SECRET_TOOLS,
            f"retrieval(url='http://{REDACTED}@127.0.0.1:1', headers={{'Authorization': '{REDACTED}'}})",
        ),
    ],
)
def test_a_plan_shows_its_wrappers_without_secrets(
    tmp_path: Path, wrappers: str, shown: str
) -> None:
    plan = Plan(
        "p", (EASY,), seeds=1, wrappers=wrappers, request='{"api_key": "correct-horse", "n": 1}'
    )
    assert plan.as_json()["wrappers"] == shown
    assert json.loads(plan.as_json()["request"]) == {"api_key": REDACTED, "n": 1}
    with RecordWriter(tmp_path / "r.jsonl", meta={"plan": plan.as_json()}):
        pass
    plan.check_same(read_header(tmp_path / "r.jsonl")["meta"]["plan"], "r.jsonl")


def test_failed_episodes_are_counted_and_played_again_by_the_next_run(tmp_path: Path) -> None:
    plan, sick = Plan("p", (EASY,), seeds=4), True

    def act(env: Any, observation: str) -> str:
        if sick and env.seed % 2:
            raise RuntimeError("out of order")
        return str(env.sample_action())

    first = evaluate(plan, ScriptedPlayer(act), tmp_path / "r.jsonl")
    assert [e.failed for e in first] == [False, True, False, True]
    sick = False
    played: list[int] = []
    second = evaluate(
        plan, ScriptedPlayer(act), tmp_path / "r.jsonl", on_episode=lambda e: played.append(e.index)
    )
    assert sorted(played) == [1, 3]
    assert not any(e.failed for e in second)
    assert [e.index for e in results(tmp_path / "r.jsonl")] == [0, 1, 2, 3]


def test_a_policy_that_always_fails_ends_the_run_early(tmp_path: Path) -> None:
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


def test_turn_limits_are_those_of_the_plan(tmp_path: Path) -> None:
    limits = Limits(max_turns=99, retries=1)
    found = evaluate(
        Plan("random", ("game:Sudoku-v0-easy",), seeds=3, max_turns=2),
        RandomPlayer(),
        tmp_path / "r.jsonl",
        limits=limits,
    )
    assert {len(e.turns) for e in found} == {2}
    (point,) = scaling_points([score("x", "random", found, 2)])
    assert (point.compute, point.unit, point.k) == (2.0, "turns", 1)


def test_patterns_and_mixtures_choose_environments() -> None:
    assert chosen_envs([EASY, "game:Wordle*", EASY]) == (EASY, *list_envs("game:Wordle*"))
    assert chosen_envs(["2*game:Wordle-v0 + 1*game:Hangman-v0"]) == (
        "2*game:Wordle-v0 + 1*game:Hangman-v0",
    )
    with pytest.raises(LookupError, match="did you mean"):
        chosen_envs(["game:GuessTheNumbr-v0"])


# The command, against a server that fails as real ones do.


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> str:
        log = (
            tmp_path_factory.mktemp("server") / "log"
        )  # a pipe would fill up, since nobody reads the requests
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
    given = [EASY, "game:Hangman-v0-easy", "--model", "plain", "--server", url, "--out", str(out)]
    return [
        "eval",
        *given,
        "--seeds",
        "6",
        "--samples",
        "4",
        "--sampling-seed",
        "7",
        "--concurrency",
        "4",
        *more,
    ]


def test_troubles_of_a_server_are_got_over_and_reported(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server("--trouble", "busy,drop,broken", "--key", "a-secret-key-of-mine")
    os.environ["MY_SERVER_KEY"] = "a-secret-key-of-mine"
    try:
        assert (
            main(
                command(
                    url,
                    tmp_path,
                    "--api-key-env",
                    "MY_SERVER_KEY",
                    "--seeds",
                    "2",
                    "--samples",
                    "1",
                )
            )
            == 0
        )
    finally:
        del os.environ["MY_SERVER_KEY"]
    shown = capsys.readouterr()
    assert "the server failed for a moment and was asked again:" in shown.err
    assert "x 429" in shown.err
    assert "x 500" in shown.err
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "a-secret-key-of-mine" not in shown.out + shown.err + written
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [(s["env_id"], s["player"]) for s in summary["scores"][:3]] == [
        (EASY, "random"),
        (EASY, "plain"),
        (EASY, "expert"),
    ]
    assert (tmp_path / "table.txt").read_text().splitlines()[0].startswith("ENVIRONMENT")


def test_a_wrong_key_ends_the_run_with_one_line(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server("--key", "another-key")
    assert main(command(url, tmp_path, "--quiet")) == 2
    error = capsys.readouterr().err
    assert "401" in error
    assert "api_key_env" in error


def test_killed_and_gone_on_with_gives_the_same_bytes(server: Any, tmp_path: Path) -> None:
    """Every answer is the server's function of prompt and seed, so that the table of a run that was killed over and over must be
    that of one that was not: no episode lost, none repeated."""
    url = server()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    env = clean_env(PYTHONPATH=os.pathsep.join(SOURCES))
    gem = [sys.executable, "-m", "gem_core"]
    assert (
        subprocess.run([*gem, *command(url, whole)], env=env, capture_output=True).returncode == 0
    )
    slow = server("--trouble", "busy")
    record, kills, size = broken / "episodes.jsonl", 0, 0
    while kills < 3:
        process = subprocess.Popen(
            [*gem, *command(slow, broken)],
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
    assert (
        subprocess.run([*gem, *command(url, broken)], env=env, capture_output=True).returncode == 0
    )
    for name in ("table.txt", "summary.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    played = [e.index for e in read_episodes(record)]
    assert sorted(played) == list(range(48))


def test_ctrl_c_keeps_what_was_finished(server: Any, tmp_path: Path) -> None:
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
    assert "the same command goes on" in error
    assert all(not e.failed for e in read_episodes(record))


def test_the_exit_code_says_whether_the_score_is_as_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [
        "eval",
        EASY,
        "--model",
        "random",
        "--seeds",
        "8",
        "--no-bounds",
        "--quiet",
        "--out",
        str(tmp_path),
    ]
    assert main([*base, "--min-success", "0.01"]) == 0
    assert main([*base, "--min-success", "1.0"]) == 1
    assert "below 1.0" in capsys.readouterr().err
    assert main([*base, "--min-return", "2"]) == 1
    assert main([*base, "--max-turns", "x"]) == 2


def test_each_list_of_environments_has_a_folder_of_its_own(
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
        assert main(command) == main(command) == 0  # the second one goes on in the same place
    names = sorted(
        path.parent.name
        for path in (tmp_path / "runs" / "eval" / "random").glob("*/episodes.jsonl")
    )
    easy, hangman = "game-GuessTheNumber-v0-easy", "game-Hangman-v0-easy"
    assert {easy, hangman, f"{easy}+{hangman}"} < set(names)
    assert len(names) == 5
    assert max(map(len, names)) < 100


class Silent(Env):
    """Nobody but a model can play it."""

    def on_reset(self, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "Well?", {}

    def on_step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("random", "Silent has no sample_action(), so nobody can play it at random"),
        ("expert", "Silent has no expert(), so nobody can play it as an expert"),
    ],
)
def test_a_player_that_cannot_play_is_refused_before_anything_is_played(
    model: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register("test:Silent-v0", Silent)
    try:
        assert (
            main(["eval", EASY, "test:Silent-v0", "--model", model, "--out", str(tmp_path / "out")])
            == 2
        )
    finally:
        environments.remove("test:Silent-v0")
    assert f"test:Silent-v0: {said}; leave it out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_several_turn_limits_are_several_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "eval",
        EASY,
        "--model",
        "random",
        "--seeds",
        "5",
        "--samples",
        "2",
        "--max-turns",
        "1,4",
        "--quiet",
        "--out",
        str(tmp_path),
    ]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "TURNS<=" in out
    points = json.loads((tmp_path / "summary.json").read_text())["scaling"]
    assert [(p["max_turns"], p["k"]) for p in points] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert (
        main(["compare", str(tmp_path / "turns-1"), str(tmp_path / "turns-4"), "--metric", "turns"])
        == 0
    )
