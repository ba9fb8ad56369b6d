"""Search tool: a local BM25 index over a corpus of texts that all episodes share.

An index is a folder with the BM25 scores, the passages and their offsets. It is memory-mapped, so
processes on one machine share it too. Build one with `gem-rl index CORPUS OUT`; `corpus.py` has the
formats of a corpus, `dense.py` an index of embeddings.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from array import array
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.corpus import read_corpus
from gem_tools.passage import Passage, show_passages
from gem_tools.sandbox.homes import make_home
from gem_tools.tool import Tool, ToolResult

__all__ = ["Index", "SearchTool", "Searchable"]

_WORD = re.compile(r"\w+")
_FORMAT = "gem-index-1"
_opened: dict[str, Index] = {}
_lock = threading.Lock()


class Index:
    """An open index. Thread-safe; `Index.open` returns a shared one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        bm25s, self._numpy = _libraries()
        self.path = Path(path)
        try:
            about = json.loads((self.path / "index.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is not an index ({error}); "
                f"build one with: gem-rl index CORPUS {self.path}"
            ) from None
        if about.get("format") != _FORMAT:
            raise ConfigError(
                f"{self.path} is an index of the format {about.get('format')!r}, "
                f"expected {_FORMAT!r}; rebuild it with: gem-rl index CORPUS {self.path}"
            )
        self.size = int(about["passages"])
        self._scores = bm25s.BM25.load(str(self.path / "bm25"), mmap=True, show_progress=False)
        self._begins = self._numpy.memmap(self.path / "begins.bin", dtype="<u8", mode="r")
        self._file = os.open(self.path / "passages.jsonl", os.O_RDONLY)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """Open the index in a folder, or return it if it is already open."""
        key = f"{os.path.realpath(path)} {_modified(path)}"
        with _lock:
            if key not in _opened:
                _opened[key] = cls(path)
            return _opened[key]

    @classmethod
    def build(
        cls, corpus: str | os.PathLike[str], out: str | os.PathLike[str], *, words: int = 150
    ) -> Index:
        """Build an index and open it.

        Text files are split into passages of about `words` words. The new index replaces an index
        at `out` once it is complete.
        """
        bm25s, _ = _libraries()
        target = Path(out)
        if target.exists() and not (target / "index.json").exists():
            raise ConfigError(
                f"{target} exists and is not an index; choose another folder or remove it"
            )
        building = target.with_name(f"{target.name}.building-{os.getpid()}")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            tokens: list[list[str]] = []
            begins, position = array("Q"), 0
            with open(building / "passages.jsonl", "wb") as file:
                for passage in read_corpus(corpus, words=words):
                    line = json.dumps([passage.id, passage.title, passage.text]).encode() + b"\n"
                    file.write(line)
                    begins.append(position)
                    position += len(line)
                    tokens.append(_tokens(f"{passage.title} {passage.text}"))
            if not any(tokens):
                raise ConfigError(f"the corpus {corpus} contains no text")
            begins.append(position)
            (building / "begins.bin").write_bytes(begins.tobytes())
            scores = bm25s.BM25()
            scores.index(tokens, show_progress=False)
            scores.save(str(building / "bm25"), show_progress=False)
            about = {"format": _FORMAT, "passages": len(tokens), "words": words}
            (building / "index.json").write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(target, ignore_errors=True)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return cls.open(target)

    @classmethod
    def temporary(cls, corpus: str | os.PathLike[str]) -> Index:
        """Build an index whose folder is removed when this process ends."""
        return cls.build(corpus, Path(make_home()) / "index")

    def search(self, query: str, k: int = 3) -> list[Passage]:
        """Return the best k passages that contain a word of the query.

        Equal scores keep the order of the corpus.
        """
        words = [word for word in _tokens(query) if word in self._scores.vocab_dict]
        if not words:
            return []
        np = self._numpy
        scores = self._scores.get_scores(words)
        k = min(k, self.size)
        best = np.argpartition(-scores, k - 1)[:k]
        if len(best):  # add all ties, whose order decides
            best = np.flatnonzero(scores >= scores[best].min())
        best = best[np.lexsort((best, -scores[best]))][:k]
        return [self._passage(int(i), float(scores[i])) for i in best if scores[i] > 0]

    def _passage(self, number: int, score: float) -> Passage:
        begin, end = int(self._begins[number]), int(self._begins[number + 1])
        id, title, text = json.loads(os.pread(self._file, end - begin, begin))
        return Passage(id, title, text, score)


class Searchable(Protocol):
    """What the search tool needs of an index."""

    def search(self, query: str, k: int = 3) -> list[Passage]:
        """Return the best k passages."""


class SearchTool(Tool):
    """A tool that searches an index; tools with the same index share it."""

    name = "search"
    main_argument = "query"
    example = "a few words"

    def __init__(
        self,
        index: str | os.PathLike[str] | Searchable = "",
        *,
        embed: Callable[[list[str]], Any] | str | None = None,
        k: int = 3,
        max_tokens: int | None = 500,
        count: Callable[[str], int] | None = None,
        description: str = "Searches a collection of texts and shows the passages that fit best.",
    ) -> None:
        """Configure the tool; `max_tokens` limits the result, counted by `count` (or by words).

        `index` is a folder, or an object with `search(query, k)`. The folder of a dense index needs
        the embedding that built it, as a function or as 'module:function'.
        """
        if not index:
            raise ConfigError(
                "the tool 'search' needs search(index='FOLDER'); "
                "build an index with: gem-rl index CORPUS FOLDER"
            )
        whole_number("k", k, 1)
        self.index: Searchable
        if not isinstance(index, (str, os.PathLike)):
            self.index = index
        elif embed is not None:
            from gem_tools.dense import DenseIndex

            self.index = DenseIndex(index, embed)
        else:
            self.index = Index.open(index)
        self.k, self.max_tokens, self.count, self.description = k, max_tokens, count, description
        self.parameters = {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for"}},
            "required": ["query"],
        }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Search the index."""
        passages = self.index.search(str(arguments["query"]), self.k)
        info = {"passages": [passage.id for passage in passages]}
        text = show_passages(passages, self.max_tokens, self.count)
        return ToolResult(text, error=not passages, info=info)

    @classmethod
    def status(cls) -> str:
        if find_spec("bm25s"):
            return "ready"
        return "not installed; in a checkout of gem: pip install '.[search]'"


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _modified(path: str | os.PathLike[str]) -> float:
    try:
        return os.stat(Path(path) / "index.json").st_mtime
    except OSError:
        return 0.0


def _libraries() -> tuple[Any, Any]:
    # The first import of bm25s initialises an installed jax, which takes 75 % of the GPU's memory.
    hidden = not sys.modules.keys() & {"bm25s", "jax"}
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import bm25s
        import numpy
    except ImportError as error:
        raise MissingDependencyError("the search tool", "search", str(error)) from error
    finally:
        if hidden:
            del sys.modules["jax"]
    return bm25s, numpy
