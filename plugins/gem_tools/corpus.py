"""Corpus: the texts of a search index, as passages.

A corpus is a JSONL file (`text` or `contents`, and optionally `id` and `title`) or a folder of text
files, which are split into passages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_tools.passage import Passage

__all__ = ["read_corpus"]

_TEXTS = ("text", "contents", "content", "passage")
_TITLES = ("title", "name")
_IDS = ("id", "_id", "docid", "doc_id")
_FILES = (".txt", ".md", ".rst")


def read_corpus(corpus: str | os.PathLike[str], *, words: int = 150) -> Iterator[Passage]:
    """Yield the passages of a JSONL file or of a folder of text files."""
    path = Path(corpus)
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in _FILES and p.is_file())
        if not files:
            raise ConfigError(f"the folder {path} contains no {', '.join(_FILES)} file")
        for file in files:
            title = file.relative_to(path).as_posix()
            content = file.read_text(encoding="utf-8", errors="replace")
            for number, text in enumerate(_split(content, words)):
                yield Passage(f"{title}#{number}", title, text, 0.0)
    elif path.is_file():
        yield from _read_jsonl(path)
    else:
        raise ConfigError(f"no corpus at {path}; expected a JSONL file or a folder of text files")


def _read_jsonl(path: Path) -> Iterator[Passage]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"line {number} of {path} is not JSON: {error}") from None
            text = _first(record, _TEXTS) if isinstance(record, dict) else None
            if text is None:
                raise ConfigError(
                    f"line {number} of {path} has no text; "
                    f"expected a JSON object with one of {', '.join(_TEXTS)}"
                )
            id, title = _first(record, _IDS) or str(number - 1), _first(record, _TITLES) or ""
            yield Passage(id, title, text, 0.0)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((str(record[name]) for name in names if record.get(name) is not None), None)


def _split(text: str, words: int) -> Iterator[str]:
    """Join paragraphs up to `words` words; cut longer paragraphs."""
    passage: list[str] = []
    size = 0
    for paragraph in re.split(r"\n\s*\n", text):
        pieces = paragraph.split()
        while pieces:
            room = words - size
            if size and len(pieces) > room:
                yield "\n\n".join(passage)
                passage, size = [], 0
                continue
            passage.append(" ".join(pieces[:words]))
            size += len(pieces[:words])
            pieces = pieces[words:]
    if passage:
        yield "\n\n".join(passage)
