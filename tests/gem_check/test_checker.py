"""Tests of the environment checker: every registered environment passes, every problem is found."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from misbehaving import Counter
from project import ROOT, clean_env

from gem_check.checker import check_env, examine, find_problems
from gem_check.checks import CHECKS, CheckedEnv, check_global_random_state
from gem_check.subject import SEEDS
from gem_check.transcripts import transcripts, transcripts_elsewhere
from gem_core import Env, list_envs, register, run_episode
from gem_core.__main__ import main
from gem_core.env import registry
from gem_core.env.action_format import ActionFormat
from gem_core.env.wrapper import Wrapper
from gem_core.errors import (
    CheckError,
    ConfigError,
    MissingDependencyError,
    PolicyError,
    UnknownNameError,
)
from gem_core.policies.players import player_named

ELSEWHERE = ("agentgym:", "openenv:", "terminal:", "web:")
"""Environments that are slow or need a server, the sandbox or a browser: see tests/gem_envs."""
IDS = [id for id in list_envs() if not id.startswith(ELSEWHERE)]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, Any]:
    """Return the transcripts of all ids from another process; here, the hash seed is random."""
    return transcripts_elsewhere(IDS, 0)


@pytest.mark.parametrize("id", IDS)
def test_every_registered_env_passes_the_checker(id: str, elsewhere: dict[str, Any]) -> None:
    try:
        registry.make(id).close()
    except MissingDependencyError:
        with pytest.raises(MissingDependencyError, match="pip install"):
            check_env(id)
        return
    check_env(id, processes=False)
    here = transcripts([id])[id]
    assert len(here) == len(SEEDS)
    if registry.make(id).deterministic:
        assert elsewhere[id] == here


class Plain(Counter):
    """Counts like `Counter`, but with an empty info."""

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        return super().on_reset(options)[0], {}

    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {})


def test_well_behaved_envs_have_no_problems() -> None:
    assert find_problems(Plain()) == []
    assert find_problems(GoodExpert(), processes=False) == []
    check_env("1*game:GuessTheNumber-v0-easy + 1*game:GuessTheNumber-v0-hard", processes=False)


class EmptyStart(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        super().on_reset(options)
        return "", {}


class OddKeys(Plain):
    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {1: 2})


class OddSuccess(Plain):
    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {"success": "yes"})


class OddPrompts(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        return super().on_reset(options)[0], {"system": 5, "role": "assistant"}

    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {"suffix": ["board"]})


class GoodExpert(Plain):
    def expert(self) -> Any:
        return ["go"] * self.length


class ShortExpert(Plain):
    def expert(self) -> Any:
        yield "go"


class NumberExpert(Plain):
    def expert(self) -> Any:
        yield 3


class TextExpert(Plain):
    def expert(self) -> Any:
        return "go"


class ReturnsNothing(Plain):
    def expert(self) -> Any:
        pass


class GlobalDraw(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        observation, info = super().on_reset(options)
        return f"{observation} {random.random()}", info


class GlobalSeed(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        random.seed(self.seed)
        return super().on_reset(options)


class KeepsOn(Plain):
    """Carries state from one episode to the next."""

    played = 0

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self.played += 1
        observation, info = super().on_reset(options)
        return f"{observation} {self.played}", info


class HashOrder(Plain):
    def on_step(self, action: str) -> Any:
        observation, *rest = super().on_step(action)
        words = {f"word {i}" for i in range(20)}  # few would sometimes have the same order
        return (f"{observation} {list(words)}", *rest)


class IllegalSample(Plain):
    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {"format_error": True})


class SamplingDraws(Plain):
    def sample_action(self) -> str:
        return str(self.rng.randrange(10))


class Fragile(Plain):
    def on_step(self, action: str) -> Any:
        int(action)
        return super().on_step(action)


class UnpicklableInfo(Plain):
    def on_step(self, action: str) -> Any:
        return (*super().on_step(action)[:4], {"f": lambda: 0})


class LoneSurrogate(Plain):
    def on_step(self, action: str) -> Any:
        return ("\ud83d", *super().on_step(action)[1:])


class HugeObservation(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        super().on_reset(options)
        return "x" * 4_000_000, {}


class SlowInline(Plain):
    execution = "inline"

    def on_step(self, action: str) -> Any:
        time.sleep(0.03)
        return super().on_step(action)


class Superscript(Plain):
    def on_step(self, action: str) -> Any:
        if action.isdigit() and len(action) < 9:
            int(action)
        return super().on_step(action)


class OddDeclarations(Plain):
    execution = "somewhere"  # type: ignore[assignment]
    action_example = ""


class Tolerant(Plain):
    """Steps before the reset and after the end without an error."""


def tolerant_step(self: Env, action: str) -> Any:
    return "x", 1.0, False, False, {}


# Set here, because a class body that overrides step() raises ContractError.
Tolerant.step = tolerant_step  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (EmptyStart, "types", "empty observation"),
        (OddKeys, "types", "the key 1"),
        (OddSuccess, "types", "must be a bool"),
        (OddPrompts, "types", "reset() of OddPrompts returned system = 5"),
        (OddPrompts, "types", "role = 'assistant'; it must be one of user, tool, continuation"),
        (OddPrompts, "types", "step() of OddPrompts returned suffix = ['board']"),
        (ShortExpert, "expert", "ran out of actions before the episode ended"),
        (NumberExpert, "expert", "yielded int 3; an action must be a string"),
        (TextExpert, "expert", "returned 'go'; it must yield actions"),
        (ReturnsNothing, "expert", "returned None; it must yield actions"),
        (GlobalDraw, "global_random_state", "changed the global random state of the module random"),
        (GlobalDraw, "global_random_state", "depend on the global random state"),
        (GlobalDraw, "seeding", "two instances"),
        (GlobalSeed, "global_random_state", "changed the global"),
        (KeepsOn, "seeding", "a new and a used instance"),
        (HashOrder, "other_processes", "PYTHONHASHSEED"),
        (IllegalSample, "random_actions", "the environment rejects"),
        (SamplingDraws, "random_actions", "self.action_rng"),
        (Fragile, "odd_actions", "a model may write anything"),
        (Superscript, "odd_actions", "step('\u00b2') of Superscript raised ValueError"),
        (LoneSurrogate, "observations", "'\\ud83d', a lone surrogate"),
        (HugeObservation, "observations", "an observation of 4,000,000 characters"),
        (SlowInline, "speed", "declare 'thread'"),
        (UnpicklableInfo, "types", "an info that cannot be pickled"),
        (OddDeclarations, "declarations", "'inline', 'thread' or 'process'"),
        (OddDeclarations, "declarations", "action_example"),
        (Tolerant, "order_of_calls", "before reset"),
        (Tolerant, "order_of_calls", "ActionTypeError"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_checker_finds_each_problem(env: type[Env], check: str, message: str) -> None:
    problems = find_problems(env(), processes=check == "other_processes")
    messages = [p.message for p in problems if p.check == check]
    assert any(message in sentence for sentence in messages), messages
    assert all(sentence[-1] in ".)" for sentence in messages)
    with pytest.raises(CheckError, match=r"problem\(s\)"):
        check_env(env(), processes=check == "other_processes")


def test_every_check_is_covered_by_a_failing_env() -> None:
    """A check that no environment above fails would be untested."""
    marks = test_checker_finds_each_problem.pytestmark  # type: ignore[attr-defined]
    covered = {case[1] for mark in marks for case in mark.args[1]}
    assert {check.__name__.removeprefix("check_") for check in CHECKS} == covered


def test_checker_finds_an_exceeded_turn_limit() -> None:
    register("test_checker:Long-v0", "misbehaving:Counter", kwargs={"length": 30}, turns=5)
    try:
        problems = find_problems("test_checker:Long-v0", processes=False)
        assert any("turns=5" in p.message for p in problems)
    finally:
        registry.environments.remove("test_checker:Long-v0")


def test_env_registered_in_this_process_is_played_in_others() -> None:
    register("test_checker:Hand-v0", HashOrder)
    try:
        assert {p.check for p in find_problems("test_checker:Hand-v0")} == {"other_processes"}
    finally:
        registry.environments.remove("test_checker:Hand-v0")


class WithoutSample(Plain):
    """Well behaved, but without sample_action."""

    sample_action = Env.sample_action


class Endless(WithoutSample):
    def on_step(self, action: str) -> Any:
        return f"{action} {self.turn}", 0.0, False, False, {}


class TextReward(WithoutSample):
    def on_step(self, action: str) -> Any:
        return "paid", "-0.05", True, False, {}


class ForgotInfo(Plain):
    def on_reset(self, options: Mapping[str, Any]) -> Any:
        return "no info"


class OddReward(Plain):
    def on_step(self, action: str) -> Any:
        observation, reward, *rest = super().on_step(action)
        return (observation, reward if action.isdigit() and len(action) < 9 else "nothing", *rest)


@contextmanager
def registered(entry_point: Any, **facts: Any) -> Iterator[str]:
    register("test_checker:One-v0", entry_point, **facts)
    try:
        yield "test_checker:One-v0"
    finally:
        registry.environments.remove("test_checker:One-v0")


@pytest.mark.parametrize("form", ["boxed", "react", "tool_call", "code"])
def test_env_without_sample_action_is_played_in_its_format(form: str) -> None:
    with registered(Endless, wrappers=[form], turns=5) as id:
        (problem,) = find_problems(id, processes=False)
        assert problem.check == "order_of_calls"
        assert "turns=5, but an episode with the action" in problem.message
        assert "it has no sample_action()" in problem.message
        assert "return terminated or truncated, or register another number." in problem.message
    with registered(WithoutSample, wrappers=[form], turns=5) as id:
        check_env(id, processes=False)


def test_checker_finds_an_endless_episode() -> None:
    with registered(Endless) as id:
        (problem,) = find_problems(id, processes=False)
    assert "did not end after 2000 turns" in problem.message
    assert "return terminated or truncated at some turn" in problem.message
    assert "or use the wrapper turn_limit." in problem.message
    assert [p.check for p in find_problems(Endless(), processes=False)] == ["order_of_calls"]
    with registered(Endless, offline=False) as id:  # for example the environment of a server
        check_env(id, processes=False)
    with registered(Endless, wrappers=["turn_limit(max_turns=6)"]) as id:
        check_env(id, processes=False)


def test_odd_texts_reach_an_env_through_its_format() -> None:
    with registered(Fragile, wrappers=["react"]) as id:
        (problem,) = find_problems(id, processes=False)
    assert problem.check == "odd_actions"
    assert "step('Thought: I try this.\\nAction: hello'), and " in problem.message
    assert problem.message.endswith("a model may write anything.")


@pytest.mark.parametrize(
    ("entry_point", "wrapper", "message"),
    [
        ("misbehaving:Nonsuch", "boxed", "has no attribute 'Nonsuch'."),
        ("misbehaving:Counter", "boxd", "did you mean 'boxed'"),
    ],
)
def test_env_that_cannot_be_made_is_reported_once(
    entry_point: str, wrapper: str, message: str
) -> None:
    with registered(entry_point, wrappers=[wrapper]) as id:
        (problem,) = find_problems(id)
    assert message in problem.message
    assert str(problem).startswith("[making] test_checker:One-v0 cannot be made: ")


BAD_RESET = "returned 'no info'; it must return (str, dict) (ForgotInfo.on_reset)."
BAD_REWARD = "returned the reward '-0.05'; it must be a number (TextReward.on_step)."


@pytest.mark.parametrize(
    ("env", "wrappers", "message"),
    [
        (ForgotInfo, [], BAD_RESET),
        (TextReward, [], BAD_REWARD),
        (TextReward, ["boxed"], BAD_REWARD),
        (TextReward, [Wrapper], BAD_REWARD),
    ],
)
def test_problem_of_several_checks_is_reported_once_with_its_method(
    env: type[Env], wrappers: list[Any], message: str
) -> None:
    with registered(env, wrappers=wrappers) as id:
        (problem,) = find_problems(id)
    assert problem.message.endswith(message)
    assert set(problem.check.split(", ")) >= {"types", "seeding", "odd_actions", "other_processes"}
    assert re.match(r"\[types and \d more\] ", str(problem))


def test_contract_violation_for_odd_texts_names_one_text() -> None:
    (problem,) = find_problems(OddReward(), processes=False)
    assert problem.message.startswith("step(''), and ")
    assert problem.message.endswith(
        "returned the reward 'nothing'; it must be a number (OddReward.on_step)."
    )


def test_global_randomness_is_reported_before_its_effects() -> None:
    problems = find_problems(GlobalDraw())
    assert "draw from self.rng instead" in problems[0].message
    checks = [problem.check for problem in problems]
    assert checks == ["global_random_state", "global_random_state", "seeding", "other_processes"]
    assert problems[2].message.endswith("from seed 0, 1, 2.")


def test_env_of_the_docs_passes_the_checker_and_is_solved_by_its_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, registering, *_ = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "write_an_environment.md").read_text(), re.DOTALL
    )
    (tmp_path / "shown_lock.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    lock = importlib.import_module("shown_lock").Lock
    exec(registering, {"Lock": lock})
    try:
        check_env("mine:Lock-v0")
        check_env(lock())
        env = registry.make("mine:Lock-v0")
        episode = run_episode("mine:Lock-v0", player_named("expert"), seed=1)
    finally:
        registry.environments.remove("mine:Lock-v0")
    assert episode.success
    assert episode.rewards == (1 / 3, 1 / 3, 1 / 3)
    assert "has 2 dials" in env.reset(seed=1, options={"dials": 2})[0]


def test_env_of_the_docs_works_as_a_file_in_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "write_an_environment.md").read_text()
    (tmp_path / "lock.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n" * 20))
    monkeypatch.setattr("sys.path", list(sys.path))
    commands = [
        command.partition("#")[0].strip()
        for command in page.splitlines()
        if re.match(r"gem-rl \w+ lock\.py:Lock", command)
    ]
    try:
        for command in commands:
            assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    finally:
        sys.modules.pop("lock", None)
    shown = capsys.readouterr().out
    assert "1 of 1 keep the contract" in shown
    assert "A lock has 2 dials" in shown
    assert "played by its expert" in shown
    assert re.search(r"lock\.py:Lock +expert +\d+ +\d+ +1\.000", shown)


def test_docs_name_every_check() -> None:
    page = (ROOT / "docs" / "write_an_environment.md").read_text()
    cells = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert {check.__name__.removeprefix("check_") for check in CHECKS} <= named
    assert {"execution", "deterministic", "option_names", "action_example"} <= named
    assert set(inspect.signature(ActionFormat.__init__).parameters) - {"self", "env"} <= named


def test_checker_restores_the_global_random_state() -> None:
    random.seed(5)
    state = random.getstate()
    check_env(Plain(), processes=False)
    assert random.getstate() == state
    list(check_global_random_state(CheckedEnv(GlobalDraw())))
    assert random.getstate() == state


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("where", ["reset", "step", "close"])
@pytest.mark.parametrize("error", [SystemExit, Unprintable])
def test_checker_reports_every_kind_of_exception(error: Any, where: str) -> None:
    class Fails(Counter):
        pass

    def fail(*_: Any) -> Any:
        raise error()

    setattr(Fails, f"on_{where}", fail)
    problems = find_problems(Fails(), processes=False)
    assert any(error.__name__ in problem.message for problem in problems)


def test_checker_accepts_wrappers_and_rejects_wrong_arguments() -> None:
    assert find_problems(Wrapper(Plain()), processes=False) == []
    with pytest.raises(ConfigError, match="takes an environment"):
        check_env(3)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError):
        check_env("game:Nonsuch")


def test_check_command_prints_results_and_sets_the_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gem_core", "check", "GuessTheNumber-v0-easy"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "ok        game:GuessTheNumber-v0-easy" in done.stdout
    assert "1 of 1 keep the contract" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "gem_core", "check", "Nonsuch", "--here"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no environment is registered" in done.stderr


class Hangs(Plain):
    def on_step(self, action: str) -> Any:
        threading.Event().wait()


def test_step_that_never_returns_is_reported_with_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (problem,) = find_problems(Hangs(), step_limit=2)
    assert problem.check == "step_limit"
    line = inspect.getsourcelines(Hangs.on_step)[1] + 1
    assert f"within 2 s (on_step, test_checker.py:{line})" in problem.message
    with registered(Hangs) as id:
        assert main(["check", id, "--step-limit", "2"]) == 1
    assert "did not return within 2 s" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="step_limit must be above 0"):
        find_problems(Plain(), step_limit=0)


def test_missing_sample_action_is_noted_not_a_problem(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    report = examine(WithoutSample(), processes=False)
    assert report.problems == ()
    assert "WithoutSample has no sample_action(), so only the action 'go'" in report.notes[0]
    check_env(WithoutSample(), processes=False)
    assert "has no sample_action()" in caplog.text
    with registered(WithoutSample) as id:
        assert main(["check", id, "--here"]) == 0
        assert "    note: test_checker:One-v0 has no sample_action()" in capsys.readouterr().out
        assert main(["check", id, "--here", "--json"]) == 0
    assert "sample_action" in json.loads(capsys.readouterr().out)["notes"][id][0]


def test_expert_without_a_solution_is_noted_and_an_endless_one_reported() -> None:
    class Unsolved(Plain):
        def expert(self) -> Any:
            raise PolicyError("this row has no solution")

    report = examine(Unsolved(), processes=False)
    assert report.problems == ()
    (note,) = report.notes
    assert note == "the expert of Unsolved did not play seed 0: this row has no solution."

    class Waits(Plain):
        def on_step(self, action: str) -> Any:
            return "", 0.0, action != "wait", False, {}

        def expert(self) -> Any:
            while True:
                yield "wait"

    with registered(Waits, turns=5) as id:
        (problem,) = find_problems(id, processes=False)
    assert problem.check == "expert"
    assert "did not end the episode within 5 turns (seed 0)." in problem.message


def test_class_that_other_processes_cannot_import_is_noted() -> None:
    class Local(Plain):
        pass

    (note,) = examine(Local()).notes
    assert "Local was not played in other processes" in note


ECHO = """
from gem_core import Env

class Mine(Env):
    execution = "inline"

    def __init__(self, length=2):
        self.length = length

    def on_reset(self, options):
        return f"say anything {self.length} times", {}

    def on_step(self, action):
        return str(WORDS), 0.0, self.turn + 1 >= self.length, False, {}

    def sample_action(self):
        return "x"
"""
SCRIPT = """
from gem_core import check_env, register

register("mine:One-v0", Mine)
check_env("mine:One-v0")
check_env(Mine())
check_env("SCRIPT:Mine")
print("checked", __name__)
"""


def test_class_of_a_script_is_checked_in_other_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    program = (ECHO + SCRIPT).replace("SCRIPT", str(script))
    script.write_text(program.replace("WORDS", "['red', 'green', 'blue', 'black']"))
    environment = clean_env(PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout == "checked __main__\n", done.stderr
    assert done.stderr == ""
    script.write_text(program.replace("WORDS", "{'red', 'green', 'blue', 'black'}"))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert "[other_processes] mine:One-v0 played a different episode" in done.stderr
    assert "the order of a set" in done.stderr


def test_check_command_checks_a_class_in_a_file_with_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "echo.py").write_text(ECHO.replace("WORDS", "action"))
    id = f"{tmp_path / 'echo.py'}:Mine"
    assert main(["check", id, "--args", '{"length": 3}']) == 0
    assert "1 of 1 keep the contract" in capsys.readouterr().out
    assert main(["check", id, "--args", '{"width": 3}', "--here"]) == 1
    assert "does not take 'width'" in capsys.readouterr().out


def test_file_of_a_package_may_import_relatively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "echoes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text("WORDS = ['red', 'green']")
    (package / "echo.py").write_text("from .words import WORDS\n" + ECHO)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(["check", f"{package / 'echo.py'}:Mine"]) == 0, capsys.readouterr().out


def unmakeable() -> Env:
    raise MissingDependencyError(
        "the environment 'test:Absent-v0'", "absent", "No module named 'absent'"
    )


@pytest.fixture
def absent() -> Iterator[str]:
    registry.register("test:Absent-v0", unmakeable)
    registry.register("test:Present-v0", Plain)
    yield "test:Absent-v0"
    registry.environments.remove("test:Absent-v0")
    registry.environments.remove("test:Present-v0")


def test_check_command_fails_when_all_envs_are_skipped(
    absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", absent, "--here"]) == 1
    captured = capsys.readouterr()
    assert f"skipped   {absent}: " in captured.out
    assert "pip install" in captured.out
    assert "keep the contract" not in captured.out
    assert "nothing was checked: 1 skipped because packages are missing" in captured.err


def test_check_command_prints_skipped_envs_as_json(
    absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", absent, "--here", "--json"]) == 1
    captured = capsys.readouterr()
    results = json.loads(captured.out)
    assert results["problems"] == {}
    assert "pip install" in results["skipped"][absent]
    assert "nothing was checked" in captured.err
    assert main(["check", "test:*sent-v0", "--here", "--json"]) == 0  # one can be checked
    results = json.loads(capsys.readouterr().out)
    assert results["problems"] == {"test:Present-v0": []}
    assert list(results["skipped"]) == [absent]


def test_other_process_does_not_import_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gem_core", "gem_check", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    id = "game:GuessTheNumber-v0-easy"
    assert len(transcripts_elsewhere([id], 0)[id]) == len(SEEDS)
    assert not (tmp_path / "ran").exists()
