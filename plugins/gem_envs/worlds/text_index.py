"""Text index: a BM25 index over generated documents, built once per process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from gem_tools.passage import Passage
from gem_tools.sandbox.homes import make_home
from gem_tools.search import Index

__all__ = ["build_index", "write_documents"]


def write_documents(documents: Iterable[Passage], path: Path) -> None:
    """Write documents as JSON lines, the format of `gem-rl index`."""
    with open(path, "w", encoding="utf-8") as file:
        for document in documents:
            line = {"id": document.id, "title": document.title, "text": document.text}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def build_index(documents: Iterable[Passage]) -> Index:
    """Build an index in a temporary folder, which is removed when the process ends."""
    path = Path(make_home()) / "documents.jsonl"
    try:
        write_documents(documents, path)
        return Index.temporary(path)
    finally:
        path.unlink(missing_ok=True)
