"""Search: a local BM25 index over a corpus of texts, built once, opened once, shared by all episodes.

A corpus is a JSONL file (a text under `text` or `contents`, and optionally `id` and `title`) or a folder of text files, which
are cut into passages. An index is a folder: the BM25 scores, the passages, and where in their file each begins; all are
mapped into memory, so that processes on one machine share them too. Build one with `gem-rl index CORPUS OUT`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.passage import Passage, show_passages
from gem_tools.tool import Tool, ToolResult

__all__ = ["Index", "SearchTool", "read_corpus"]

_WORD = re.compile(r"\w+")
_FORMAT = "gem-index-1"
_TEXTS, _TITLES, _IDS = (
    ("text", "contents", "content", "passage"),
    ("title", "name"),
    ("id", "_id", "docid", "doc_id"),
)
_FILES = (".txt", ".md", ".rst")
_opened: dict[str, Index] = {}
_lock = threading.Lock()


class Index:
    """An opened index. Thread-safe; open it with `Index.open`, which gives everybody the same one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        bm25s, self._numpy = _libraries()
        self.path = Path(path)
        try:
            about = json.loads((self.path / "index.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is no index ({error}); build one with: gem-rl index CORPUS {self.path}"
            ) from None
        if about.get("format") != _FORMAT:
            raise ConfigError(
                f"{self.path} is an index of the format {about.get('format')!r}, not {_FORMAT!r}; build it anew"
            )
        self.size = int(about["passages"])
        self._scores = bm25s.BM25.load(str(self.path / "bm25"), mmap=True, show_progress=False)
        self._begins = self._numpy.memmap(self.path / "begins.bin", dtype="<u8", mode="r")
        self._file = os.open(self.path / "passages.jsonl", os.O_RDONLY)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Index:
        """The index in a folder, opened by the first who asks."""
        key = f"{os.path.realpath(path)} {_changed(path)}"
        with _lock:
            if key not in _opened:
                _opened[key] = cls(path)
            return _opened[key]

    @classmethod
    def build(
        cls, corpus: str | os.PathLike[str], out: str | os.PathLike[str], *, words: int = 150
    ) -> Index:
        """Builds an index and opens it. Files of a folder are cut into passages of about `words` words. What stood at `out`
        is replaced once the new index is complete."""
        bm25s, _ = _libraries()
        target = Path(out)
        if target.exists() and not (target / "index.json").exists():
            raise ConfigError(
                f"{target} exists and is no index; choose another place, or remove it"
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
                raise ConfigError(f"the corpus {corpus} has no text in it")
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

    def search(self, query: str, k: int = 3) -> list[Passage]:
        """The k passages that fit best; those without a word of the query never do. Equal scores keep the corpus' order."""
        words = [word for word in _tokens(query) if word in self._scores.vocab_dict]
        if not words:
            return []
        np = self._numpy
        scores = self._scores.get_scores(words)
        k = min(k, self.size)
        best = np.argpartition(-scores, k - 1)[:k]
        best = (
            np.flatnonzero(scores >= scores[best].min()) if len(best) else best
        )  # all ties, so that the order decides
        best = best[np.lexsort((best, -scores[best]))][:k]
        return [self._passage(int(i), float(scores[i])) for i in best if scores[i] > 0]

    def _passage(self, number: int, score: float) -> Passage:
        begin, end = int(self._begins[number]), int(self._begins[number + 1])
        id, title, text = json.loads(os.pread(self._file, end - begin, begin))
        return Passage(id, title, text, score)


class SearchTool(Tool):
    """Searches an index. Several tools over one index share it."""

    name = "search"
    main_argument = "query"
    example = "a few words"

    def __init__(
        self,
        index: str | os.PathLike[str] | Index = "",
        *,
        k: int = 3,
        max_tokens: int | None = 500,
        count: Callable[[str], int] | None = None,
        description: str = "Searches a collection of texts and shows the passages that fit best.",
    ) -> None:
        """`max_tokens` limits what is shown, counted by `count` (default: by words)."""
        if not index:
            raise ConfigError(
                "the tool 'search' needs search(index='FOLDER'); build an index with: gem-rl index CORPUS FOLDER"
            )
        whole_number("k", k, 1)
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.k, self.max_tokens, self.count, self.description = k, max_tokens, count, description
        self.parameters = {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for"}},
            "required": ["query"],
        }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Looks the query up."""
        found = self.index.search(str(arguments["query"]), self.k)
        info = {"passages": [passage.id for passage in found]}
        return ToolResult(
            show_passages(found, self.max_tokens, self.count), error=not found, info=info
        )

    @classmethod
    def status(cls) -> str:
        return (
            "ready"
            if find_spec("bm25s")
            else "not installed; in a checkout of gem: pip install '.[search]'"
        )


def read_corpus(corpus: str | os.PathLike[str], *, words: int = 150) -> Iterator[Passage]:
    """The passages of a JSONL file or of a folder of text files."""
    path = Path(corpus)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _FILES and p.is_file())
        if not files:
            raise ConfigError(f"the folder {path} has no {', '.join(_FILES)} file in it")
        for file in files:
            title = file.relative_to(path).as_posix()
            for number, text in enumerate(
                _cut(file.read_text(encoding="utf-8", errors="replace"), words)
            ):
                yield Passage(f"{title}#{number}", title, text, 0.0)
    elif path.is_file():
        yield from _read_jsonl(path)
    else:
        raise ConfigError(
            f"there is no corpus at {path}; give a JSONL file or a folder of text files"
        )


def _read_jsonl(path: Path) -> Iterator[Passage]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"line {number} of {path} is no JSON: {error}") from None
            text = _first(record, _TEXTS) if isinstance(record, dict) else None
            if text is None:
                raise ConfigError(
                    f"line {number} of {path} has no text; a line is a JSON object with one of {', '.join(_TEXTS)}"
                )
            yield Passage(
                _first(record, _IDS) or str(number - 1), _first(record, _TITLES) or "", text, 0.0
            )


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((str(record[name]) for name in names if record.get(name) is not None), None)


def _cut(text: str, words: int) -> Iterator[str]:
    """Paragraphs joined up to `words` words; a longer one is cut."""
    held: list[str] = []
    size = 0
    for paragraph in re.split(r"\n\s*\n", text):
        pieces = paragraph.split()
        while pieces:
            room = words - size
            if size and len(pieces) > room:
                yield "\n\n".join(held)
                held, size = [], 0
                continue
            held.append(" ".join(pieces[:words]))
            size += len(pieces[:words])
            pieces = pieces[words:]
    if held:
        yield "\n\n".join(held)


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _changed(path: str | os.PathLike[str]) -> float:
    try:
        return os.stat(Path(path) / "index.json").st_mtime
    except OSError:
        return 0.0


def _libraries() -> tuple[Any, Any]:
    # bm25s tries jax out when it is first imported, if there is one, and jax then takes three quarters of a GPU's memory
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
