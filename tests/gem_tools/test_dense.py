"""Tests of the dense index: passages by the embedding that the user brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gem_core.__main__ import main
from gem_core.errors import ConfigError
from gem_tools.dense import DenseIndex
from gem_tools.search import SearchTool

TEXTS = {"cats": "Cats purr and sleep.", "dogs": "Dogs bark at cats.", "ships": "Ships sail."}
WORDS = ("cat", "dog", "ship", "purr", "bark", "sail")


def embed(texts: list[str]) -> list[list[float]]:
    """Count words: similar texts have similar vectors."""
    return [[float(text.lower().count(word)) for word in WORDS] for text in texts]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": name, "title": name, "text": text} for name, text in TEXTS.items()]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_search_returns_the_most_similar_passages(corpus: str, tmp_path: Path) -> None:
    index = DenseIndex.build(corpus, tmp_path / "index", embed)
    assert (index.size, index.width) == (3, len(WORDS))
    found = index.search("a ship that sails", k=2)
    assert found[0].id == "ships"
    assert 1.0 > found[0].score > 0.9 > found[1].score
    tool = SearchTool(index, k=1)
    assert "Dogs bark" in tool.call({"query": "a dog that can bark"}).text


def test_index_is_opened_with_the_embedding_that_built_it(corpus: str, tmp_path: Path) -> None:
    DenseIndex.build(corpus, tmp_path / "index", embed)
    tool = SearchTool(tmp_path / "index", embed=embed, k=1)
    assert "Cats purr" in tool.call({"query": "purr"}).text
    narrow = SearchTool(tmp_path / "index", embed=lambda texts: [[1.0] for _ in texts])
    with pytest.raises(ConfigError, match="built with 6; pass the same embedding"):
        narrow.call({"query": "purr"})
    with pytest.raises(ConfigError, match="format 'gem-dense-1'"):
        SearchTool(tmp_path / "index")


def test_command_builds_a_dense_index(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "my_embedding.py").write_text(
        "def embed(texts):\n    return [[t.count('a') + 1.0, t.count('s')] for t in texts]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    out = str(tmp_path / "index")
    assert main(["index", corpus, out, "--embed", "my_embedding:embed"]) == 0
    assert "embed='my_embedding:embed'" in capsys.readouterr().out
    assert len(SearchTool(out, embed="my_embedding:embed").index.search("cats", 2)) == 2


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("nowhere", "function or 'module:function'"),
        ("nowhere:embed", "cannot import the embedding"),
        (lambda texts: [1.0 for _ in texts], "one vector of finite numbers per text"),
        (lambda texts: [[1.0]], "one vector of finite numbers per text"),
        (lambda texts: [[float("nan")] for _ in texts], "finite"),
    ],
)
def test_bad_embeddings_are_errors_and_leave_no_folder(
    corpus: str, tmp_path: Path, function: Any, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        DenseIndex.build(corpus, tmp_path / "index", function)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]
