"""Tests of the terminal environment, its tasks and the sandboxed shell."""

from __future__ import annotations

from typing import Any

import pytest

from gem_core import list_envs, make, run_batch, tasks_for
from gem_core.errors import ConfigError, OptionError
from gem_core.policies.players import ExpertPlayer, expert_of
from gem_envs.agents.ids import TERMINAL_KINDS
from gem_envs.agents.terminal import Terminal
from gem_envs.agents.terminal_tasks import KINDS
from gem_tools.sandbox import containment
from gem_tools.sandbox.shell import Shell

SEEDS = range(3)


@pytest.fixture(scope="module")
def shell() -> Any:
    shell = Shell(seconds=2.0)
    yield shell
    shell.close()


def test_every_kind_has_an_id() -> None:
    assert list(TERMINAL_KINDS) == list(KINDS)
    assert list_envs("terminal:*") == sorted(f"terminal:{kind}-v0" for kind in ("Any", *KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_expert_solves_every_kind_and_doing_nothing_does_not(kind: str) -> None:
    env = make(f"terminal:{kind}-v0")
    for seed in SEEDS:
        env.reset(seed=seed)
        expert = expert_of(env)
        assert expert is not None
        for action in expert():
            observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (1.0, True, False), observation
        assert info["success"] and info["tests_passed"] == info["tests_run"] >= 1
        env.reset(seed=seed)
        _, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_seed_determines_the_task() -> None:
    env = make("terminal:Any-v0")
    first = [(env.reset(seed=seed)[0], env.task) for seed in range(8)]
    assert [(env.reset(seed=seed)[0], env.task) for seed in range(8)] == first
    assert len({str(task) for _, task in first}) == 8
    assert env.reset(seed=0, options={"kind": "Rename"})[1] == {"kind": "Rename"}
    with pytest.raises(OptionError, match="kind must be one of CountErrors"):
        env.reset(seed=0, options={"kind": "Juggle"})
    with pytest.raises(ConfigError, match="kind must be one of"):
        make("terminal:Any-v0", kind="Juggle")


def test_last_turn_is_scored() -> None:
    env = Terminal("SumColumn", max_turns=2)
    env.reset(seed=1)
    assert env.step(env.task.solution)[1:4] == (0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("cat total.txt")
    assert (reward, terminated, truncated, info["success"]) == (1.0, False, True, True)
    assert "last of 2 turns" in observation


def test_command_may_be_in_a_code_block() -> None:
    env = Terminal("Rename")
    env.reset(seed=1)
    assert "docs" in env.step("I look around first.\n```bash\nls\n```")[0]
    assert env.step("```\nsubmit\n```")[2]


def test_engine_plays_terminal_episodes() -> None:
    episodes = run_batch(tasks_for("terminal:Any-v0", seeds=range(4)), ExpertPlayer())
    assert [episode.total_reward for episode in episodes] == [1.0] * 4


def test_only_home_files_and_working_directory_persist(shell: Shell) -> None:
    home = shell.create([("a/b.txt", "hello\n", 0o640), ("empty/", "", 0o755)])
    result = shell.run("stat -c '%a %n' a/b.txt; ls; X=5; cd a; sleep 60 &", home)
    assert (result.output, result.status, result.home.cwd) == ("640 a/b.txt\na\nempty\n", 0, "a")
    result = shell.run("pwd; echo [$X]; cat b.txt; ls /tmp; ps 2>&1 | grep sleep", result.home)
    assert result.output == "/tmp/home/a\n[]\nhello\nhome\n"
    after = shell.run("echo x > /tmp/other", home).home
    assert shell.run("cat /tmp/other", after).output.endswith("No such file or directory\n")


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("sleep 30", 124, "took over 2 s"),
        ("yes", 124, "wrote too much"),
        ("exit 3", 3, ""),
        ("no-such-program", 127, "command not found"),
        ("kill -9 $PPID", 137, "what it did is lost"),
        ("mkdir shut && chmod 000 shut", 137, "what it did is lost"),
        ("echo a\0b", 2, "NUL"),
        ("echo \udc80", 0, "?"),
    ],
)
def test_failing_command_keeps_the_home_folder(
    shell: Shell, command: str, status: int, output: str
) -> None:
    home = shell.create([("kept.txt", "kept\n", 0o644)])
    result = shell.run(command, home)
    assert result.status == status and output in result.output
    assert len(result.output) < 9000
    assert shell.run("cat kept.txt", result.home).output == "kept\n"


def test_shell_cannot_see_the_machine(shell: Shell) -> None:
    home = shell.create([])
    result = shell.run(
        "cat /etc/passwd; ls /home /root /proc; id -u; touch /usr/x; cat < /dev/tcp/127.0.0.1/22",
        home,
    )
    assert "/etc/passwd: No such file" in result.output
    assert "cannot access '/proc'" in result.output
    assert "Read-only file system" in result.output or "Permission denied" in result.output
    assert result.status
    assert shell.run("awk 'BEGIN {print 6 * 7}'; python3 -c 'print(1)'", home).output == "42\n1\n"


def test_missing_bubblewrap_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    containment.contain.cache_clear()
    monkeypatch.setattr(containment, "bubblewrap", lambda: "")
    try:
        with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
            Shell(seconds=3.0)
    finally:
        containment.contain.cache_clear()


def test_shell_and_terminal_reject_invalid_arguments() -> None:
    for seconds in (0, -1, True, float("inf"), "x"):
        with pytest.raises(ConfigError, match="seconds must be"):
            Shell(seconds)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_turns"):
        Terminal(max_turns=0)
