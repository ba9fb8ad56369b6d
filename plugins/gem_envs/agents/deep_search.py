"""Deep search: answer a question by searching a corpus several times.

<search>a few words</search>        shows the best passages
<answer>the answer</answer>         ends the episode
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError
from gem_envs.datasets.qa import QA, accepted_answers
from gem_tools.calls import without_thinking
from gem_tools.retrieval import RetrievalTool
from gem_tools.search import Index, SearchTool
from gem_tools.tool import Tool, ToolError, ToolResult

__all__ = ["DeepSearch"]

_CALL = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_LONGEST = 20_000
_HOW = "Write <search>a few words</search> to search, or <answer>the answer</answer>."
_SAMPLE = "sample:search"
_LARGEST_TEXT = 64 << 20
"""The size in bytes up to which a corpus is indexed on the fly. Larger ones need `gem-rl index`."""


class DeepSearch(QA):
    """Question answering with a search engine; the reward is 1 for a correct answer, else 0.

    A search costs a turn and has no reward. The first tag outside of <think> is the action.

    `dataset` is the same as in `QA`; `corpus` is one of:

    | corpus          | meaning                                                            |
    |-----------------|--------------------------------------------------------------------|
    | `sample:search` | a small corpus about an invented country, included in gem          |
    | a folder        | an index from `gem-rl index`, or text files (indexed on the fly)   |
    | a file          | JSON lines with one text per line (indexed on the fly)             |
    | `http://...`    | a retrieval server with Search-R1's protocol                       |
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
        """Each search shows `k` passages, with `max_tokens` tokens in total."""
        super().__init__(dataset, split, subset, question_key, answer_key, metric)
        self.corpus, self.k, self.max_tokens = corpus, whole_number("k", k, 1), max_tokens
        self.search_turns = whole_number("max_turns", max_turns, 1)
        _tool(corpus, k, max_tokens)  # raise now if the corpus does not exist

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        """False with a retrieval server, whose answers may change."""
        return not self.corpus.startswith(("http://", "https://"))

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        question, info = super().on_reset(options)
        observation = (
            "Answer the question with the help of a search engine. "
            f"You may think first, inside <think> and </think>. {_HOW} "
            "After a search you are shown what was found, "
            "between <information> and </information>. "
            "Give the answer alone, in as few words as possible. "
            f"You have {self.search_turns} turns.\n\nQuestion: {question}"
        )
        return observation, info

    def on_step(self, action: str) -> StepResult:
        call = _CALL.search(without_thinking(action)[:_LONGEST])
        if call and call[1].lower() == "answer":
            return super().on_step(call[2])
        if call:
            tool = _tool(self.corpus, self.k, self.max_tokens)
            result = cast(ToolResult, tool.call({"query": call[2].strip()}))
            if result.outage:
                raise ToolError(f"the search tool failed: {result.text}")
            feedback = f"<information>\n{result.text}\n</information>"
            info = {"searched": True, **result.info}
        else:
            feedback, info = f"There is no action in that. {_HOW}", {"searched": False}
        if self.turn + 1 >= self.search_turns:
            feedback = f"{feedback}\nThat was the last of {self.search_turns} turns."
            return feedback, 0.0, False, True, {"success": False, **info}
        return feedback, 0.0, False, False, info

    def sample_action(self) -> str:
        words = re.findall(r"\w{4,}", str(self.row[self.question_key])) or ["what"]
        word = self.action_rng.choice(words)
        tag = "search" if self.action_rng.random() < 0.8 else "answer"
        return f"<{tag}>{word}</{tag}>"

    def expert(self) -> Iterator[str]:
        """Search for the row's `titles`, if it has any; then answer."""
        for title in self.row.get("titles", ()):
            yield f"<search>{title}</search>"
        yield f"<answer>{accepted_answers(self.row[self.answer_key])[0]}</answer>"


_tools: dict[tuple[str, int, int | None], Tool] = {}
_lock = threading.Lock()


def _tool(corpus: str, k: int, max_tokens: int | None) -> Tool:
    """Return the search tool that all environments of this process share, building it once."""
    if not isinstance(corpus, str) or not corpus:
        raise ConfigError(
            f"corpus must be a path, {_SAMPLE!r} or the URL of a retrieval server; got {corpus!r}"
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
    path = Path(corpus).expanduser()
    if corpus == _SAMPLE:
        path = Path(__file__).parents[1] / "data" / "sample_search_corpus.jsonl"
    if (path / "index.json").is_file():
        return Index.open(path)
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    size = sum(file.stat().st_size for file in files)
    if size > _LARGEST_TEXT:
        raise ConfigError(
            f"the corpus {corpus} has {size >> 20} MB, too much to index on the fly; "
            f"run `gem-rl index {corpus} INDEX` once and pass corpus='INDEX'"
        )
    return Index.temporary(path)
