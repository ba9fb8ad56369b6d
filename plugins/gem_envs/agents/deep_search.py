"""Deep search: a question whose answer has to be looked up in a corpus, search by search, and then given.

<search>a few words</search>        shows the passages that fit best
<answer>the answer</answer>         ends the episode
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.datasets.qa import QA, accepted_answers
from gem_tools.retrieval import RetrievalTool
from gem_tools.search import Index, SearchTool
from gem_tools.tool import Tool, ToolError, ToolResult

__all__ = ["DeepSearch"]

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_CALL = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_LONGEST = 20_000
_HOW = "Write <search>a few words</search> to search, or <answer>the answer</answer>."
_SAMPLE = "sample:search"
_LARGEST_TEXT = 64 << 20
"""Bytes of a corpus that are indexed on the fly; a larger one is indexed once, by `gem-rl index`."""


class DeepSearch(QA):
    """1 for a right answer, else 0; searches pay nothing and cost a turn. The first tag outside of <think> counts.

    `dataset` as in `QA`; `corpus` is what is searched:

    | corpus                | what it is                                                                                   |
    |-----------------------|----------------------------------------------------------------------------------------------|
    | `sample:search`       | a small corpus that comes with gem, about an invented country                                |
    | a folder              | an index that `gem-rl index` built, or text files, which are indexed on the fly              |
    | a file                | JSONL with a text on each line, indexed on the fly                                           |
    | `http://...`          | a retrieval server in Search-R1's form                                                       |
    """

    action_example = "<search>a few words</search>"

    def __init__(
        self,
        dataset: str = _SAMPLE,
        corpus: str = _SAMPLE,
        split: str | None = None,
        subset: str | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        metric: Literal["exact_match", "f1"] = "exact_match",
        k: int = 3,
        max_tokens: int | None = 500,
        max_turns: int = 10,
    ) -> None:
        """`k` passages are shown, of `max_tokens` in all."""
        super().__init__(dataset, split, subset, question_key, answer_key, metric)
        self.corpus, self.k, self.max_tokens = corpus, whole_number("k", k, 1), max_tokens
        self.search_turns = whole_number("max_turns", max_turns, 1)
        _tool(corpus, k, max_tokens)  # a corpus that is not there is an error now

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """A server may answer differently tomorrow."""
        return not self.corpus.startswith(("http://", "https://"))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        question, info = super().on_reset(options)
        said = (
            f"Answer the question with the help of a search engine. You may think first, inside <think> and </think>. {_HOW} "
            "After a search you are shown what was found, between <information> and </information>. Give the answer alone, in as "
            f"few words as possible. You have {self.search_turns} turns.\n\nQuestion: {question}"
        )
        return said, info

    def on_step(self, action: str) -> StepResult:
        call = _CALL.search(_THOUGHT.sub("", action[:_LONGEST]))
        last = self.turn + 1 >= self.search_turns
        if call and call[1].lower() == "answer":
            return super().on_step(call[2])
        if call:
            found = cast(
                ToolResult,
                _tool(self.corpus, self.k, self.max_tokens).call({"query": call[2].strip()}),
            )
            if found.outage:
                raise ToolError(f"the search is out of order: {found.text}")
            shown, info = (
                f"<information>\n{found.text}\n</information>",
                {"searched": True, **found.info},
            )
        else:
            shown, info = f"There is no action in that. {_HOW}", {"searched": False}
        if last:
            return (
                f"{shown}\nThat was the last of {self.search_turns} turns.",
                0.0,
                False,
                True,
                {"success": False, **info},
            )
        return shown, 0.0, False, False, info

    def sample_action(self) -> str:
        word = self.action_rng.choice(
            re.findall(r"\w{4,}", str(self.row[self.question_key])) or ["what"]
        )
        return (
            f"<search>{word}</search>"
            if self.action_rng.random() < 0.8
            else f"<answer>{word}</answer>"
        )

    def expert(self) -> Iterator[str]:
        """Looks up what leads to the answer, one after the other, where the data set says what does; then answers."""
        for title in self.row.get("titles", ()):
            yield f"<search>{title}</search>"
        yield f"<answer>{accepted_answers(self.row[self.answer_key])[0]}</answer>"


_tools: dict[tuple[str, int, int | None], Tool] = {}
_lock = threading.Lock()


def _tool(corpus: str, k: int, max_tokens: int | None) -> Tool:
    """One for all environments of a process that search the same: an index is built, and opened, once."""
    if not isinstance(corpus, str) or not corpus:
        raise ConfigError(
            f"corpus must be a path, {_SAMPLE!r} or the address of a retrieval server; given: {corpus!r}"
        )
    key = (corpus, k, max_tokens)
    with _lock:
        if key not in _tools:
            if corpus.startswith(("http://", "https://")):
                _tools[key] = RetrievalTool(corpus, k=k, max_tokens=max_tokens)
            else:
                _tools[key] = SearchTool(_index(corpus), k=k, max_tokens=max_tokens)
        return _tools[key]


def _index(corpus: str) -> Index:
    path = (
        Path(__file__).parents[1] / "data" / "sample_search_corpus.jsonl"
        if corpus == _SAMPLE
        else Path(corpus).expanduser()
    )
    if (path / "index.json").is_file():
        return Index.open(path)
    size = (
        path.stat().st_size
        if path.is_file()
        else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    )
    if size > _LARGEST_TEXT:
        raise ConfigError(
            f"the corpus {corpus} has {size >> 20} MB; build an index of it once, gem-rl index {corpus} INDEX, and give "
            "corpus='INDEX'"
        )
    folder = tempfile.mkdtemp(prefix="gem-index-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Index.build(path, Path(folder) / "index")
