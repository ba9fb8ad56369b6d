"""Tests of the terminal environment and its tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from boxes import kill_box
from cheats import TERMINAL_TAMPERING, play
from costly import few_of
from other_user import run_as_nobody

from gem_core import list_envs, make, run_batch, tasks_for
from gem_core.errors import ConfigError, OptionError
from gem_core.policies.players import ExpertPlayer, expert_of
from gem_envs.terminal.checks import passed
from gem_envs.terminal.env import Terminal
from gem_envs.terminal.ids import LEVELS, TERMINAL_KINDS
from gem_envs.terminal.kinds import KINDS
from gem_tools.sandbox import containment
from gem_tools.session.session import Session, SessionLost

SEEDS = range(20)
QUICK = ("CountErrors", "FixMakefile", "GitResolve", "RestartService")


def kinds(quick: int = len(QUICK)) -> list[Any]:
    return few_of([*QUICK, *(kind for kind in KINDS if kind not in QUICK)], quick)


def solve(env: Any, seed: int) -> tuple[float, bool, dict[str, Any], str]:
    env.reset(seed=seed)
    expert = expert_of(env)
    assert expert is not None
    for action in expert():
        observation, reward, terminated, _, info = env.step(action)
    return reward, terminated, info, observation


def test_every_kind_has_an_id_and_every_level_has_kinds() -> None:
    assert list(TERMINAL_KINDS) == list(KINDS) and len(KINDS) >= 30
    names = ("Any-v0", *(f"Any-v0-{level}" for level in LEVELS), *(f"{k}-v0" for k in KINDS))
    assert list_envs("terminal:*") == sorted(f"terminal:{name}" for name in names)
    for level in LEVELS:
        assert len(make(f"terminal:Any-v0-{level}").kinds) >= 9


@pytest.mark.parametrize("kind", kinds())
def test_expert_solves_the_kind(kind: str) -> None:
    seeds = SEEDS[:1] if kind in QUICK else SEEDS
    with make(f"terminal:{kind}-v0") as env:
        for seed in seeds:
            reward, terminated, info, observation = solve(env, seed)
            assert (reward, terminated) == (1.0, True), (seed, observation)
            assert info["success"] and info["tests_passed"] == info["tests_run"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_expert_solves_the_quick_kinds_on_twenty_seeds(kind: str) -> None:
    with make(f"terminal:{kind}-v0") as env:
        assert [solve(env, seed)[0] for seed in SEEDS] == [1.0] * len(SEEDS)


@pytest.mark.parametrize("kind", kinds(quick=1))
def test_cheating_is_not_paid(kind: str) -> None:
    with make(f"terminal:{kind}-v0", seconds=3.0) as env:
        for seed in SEEDS[:1] if kind in QUICK else SEEDS[:3]:
            prompt = env.reset(seed=seed)[0]
            players = {
                "null": ["submit"],
                "nonsense": ["colorless green ideas", "submit"],
                "prompt": [prompt, "submit"],
                "format": ["```bash\nls -la\n```", "```bash\ntrue\n```", "submit"],
                **{f"tamper: {c[:40]}": [c, "submit"] for c in TERMINAL_TAMPERING},
            }
            for name, actions in players.items():
                assert play(env, seed, actions) <= 0.2, (kind, seed, name)


@pytest.mark.parametrize(("old", "new"), [(": true", ": 1"), (', "hosts"', '.0, "hosts"')])
def test_json_value_of_another_type_fails_the_test(old: str, new: str) -> None:
    with make("terminal:FixJson-v0") as env:
        env.reset(seed=1)
        right = env.task.tests[0][2]
        wrong = right.replace(old, new, 1)
        assert wrong != right and json.loads(wrong) == json.loads(right)
        for text, reward in ((right, 1.0), (wrong, 0.0)):
            write = f"cat > services.json <<'EOF'\n{text}\nEOF"
            assert play(env, 1, [write, "submit"]) == reward


HIDE = (
    "cd ~/repo; echo x > left.txt; git config core.fsmonitor true; "
    "git config status.showUntrackedFiles no; echo '*' > .git/info/exclude; git status --porcelain"
)


@pytest.mark.parametrize("kind", ["GitRevert", "GitUntrack"])
def test_git_settings_cannot_hide_a_change(kind: str) -> None:
    with make(f"terminal:{kind}-v0") as env:
        env.reset(seed=1)
        solution = env.task.solution
        assert play(env, 1, [*solution, "submit"]) == 1.0
        assert play(env, 1, [*solution, HIDE, "submit"]) == 0.0


def test_graft_is_not_a_merge() -> None:
    with make("terminal:GitResolve-v0") as env:
        env.reset(seed=1)
        merge, write = env.task.solution
        branch = merge.split("git merge ")[1].split(";")[0]
        commit = write.replace("git commit", "rm .git/MERGE_HEAD; git commit")
        graft = f"git rev-parse main main~1 {branch} | xargs > .git/info/grafts; git log -1"
        assert play(env, 1, [merge, write, "submit"]) == 1.0
        assert play(env, 1, [merge, commit, graft, "submit"]) == 0.0


def test_program_of_a_test_leaves_no_process_behind() -> None:
    daemon = (
        "import os, time\n"
        "print('ok', flush=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); time.sleep(0.5); open('late.txt', 'w')\n"
    )
    session = Session()
    session.write([("daemon.py", daemon, 0o644)])
    tests = (
        ("prints", "python3 daemon.py", "ok"),
        ("prints", "sleep 1", ""),
        ("absent", "late.txt", None),
    )
    assert passed(tests, session, 60.0) == [True, True, True]
    session.close()


def test_end_of_the_terminal_fails_the_episode_unless_the_model_caused_it() -> None:
    with make("terminal:Rename-v0") as env:
        for action in ("ls", "submit"):
            env.reset(seed=1)
            kill_box(env.session)
            with pytest.raises(SessionLost):
                env.step(action)
    done = run_as_nobody(KILLED_WITHOUT_ROOT, "gem_tools", "gem_envs")
    assert done.stdout == "0.0 True False\n", done.stderr


KILLED_WITHOUT_ROOT = """
import os
from gem_envs.terminal.env import Terminal

assert os.geteuid() != 0
with Terminal("Rename") as env:
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("kill -9 -1")
    print(reward, terminated, info["success"])
"""


def test_seed_determines_the_task() -> None:
    with make("terminal:Any-v0") as env:
        first = [(env.reset(seed=seed)[0], env.task) for seed in range(6)]
        assert [(env.reset(seed=seed)[0], env.task) for seed in range(6)] == first
        assert len({str(task) for _, task in first}) == 6
        info = env.reset(seed=0, options={"kind": "Rename"})[1]
        assert info == {"kind": "Rename", "level": "easy"}
        with pytest.raises(OptionError, match="kind must be one of CountErrors"):
            env.reset(seed=0, options={"kind": "Juggle"})
    with pytest.raises(ConfigError, match="kind must be one of"):
        make("terminal:Any-v0", kind="Juggle")
    with pytest.raises(ConfigError, match="level must be one of easy, medium, hard"):
        make("terminal:Any-v0", level="brutal")


def test_kind_must_have_the_level() -> None:
    for id in ("terminal:Any-v0-easy", "terminal:FixJson-v0"):
        with pytest.raises(ConfigError, match="GitBisect is hard, but level is 'easy'; use the id"):
            make(id, kind="GitBisect", level="easy")
    with make("terminal:Any-v0-hard", kind="GitBisect") as env:
        assert env.reset(seed=1)[1] == {"kind": "GitBisect", "level": "hard"}


def test_processes_variables_and_folder_persist_between_turns() -> None:
    with Terminal("SumColumn", seconds=60) as env:
        env.reset(seed=1)
        env.step("mkdir -p deep && cd deep && NAME=world && echo page > index.html")
        env.step("python3 -m http.server 8123 > /dev/null 2>&1 &")
        env.step("until (echo > /dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.1; done")
        observation = env.step(
            'echo hello $NAME; python3 -c "import urllib.request as u; '
            "print(u.urlopen('http://127.0.0.1:8123').read())\""
        )[0]
        assert "hello world" in observation and "page" in observation
        assert observation.endswith("~/deep$")


def test_last_turn_is_scored() -> None:
    with Terminal("SumColumn", max_turns=2) as env:
        env.reset(seed=1)
        assert env.step(env.task.solution[0])[1:4] == (0.0, False, False)
        observation, reward, terminated, truncated, info = env.step("cat total.txt")
        assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)
        assert "last of 2 turns" in observation


def test_command_may_be_in_a_code_block() -> None:
    with Terminal("Rename") as env:
        env.reset(seed=1)
        assert "docs" in env.step("I look around first.\n```bash\nls\n```")[0]
        text = "```bash\nls\n```\nIt may print\n```text\nx\n```\nor\n```text\ny\n```"
        assert "docs" in env.step(text)[0]
        assert env.step("```\nsubmit\n```")[2]


@pytest.mark.parametrize("opening", ["<think>", ""])
def test_command_in_the_thinking_is_not_run(opening: str) -> None:
    with Terminal("Rename") as env:
        env.reset(seed=1)
        thinking = f"{opening}First\n```bash\ntouch wrong\n```\nor not.</think>"
        assert "docs" in env.step(f"{thinking}\nls")[0]
        assert "wrong" not in env.step(f"{thinking}\n```bash\nls -R\n```")[0]


def test_engine_plays_32_concurrent_episodes_apart() -> None:
    tasks = tasks_for("terminal:Any-v0-easy", seeds=range(32), env_kwargs={"seconds": 60.0})
    episodes = run_batch(tasks, ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 32


def test_missing_bubblewrap_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    containment.contain.cache_clear()
    monkeypatch.setattr(containment, "bubblewrap", lambda: "")
    try:
        with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
            Terminal()
    finally:
        containment.contain.cache_clear()


def test_terminal_rejects_invalid_arguments() -> None:
    for seconds in (0, -1, True, float("inf"), "x"):
        with pytest.raises(ConfigError, match="seconds must be"):
            Terminal(seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_turns"):
        Terminal(max_turns=0)
