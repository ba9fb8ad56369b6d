"""Tests of the search tool and its index."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gem_core.errors import ConfigError
from gem_tools.corpus import read_corpus
from gem_tools.passage import Passage, show_passages
from gem_tools.search import Index, SearchTool

CITIES = {
    "Paris": "France",
    "Rome": "Italy",
    "Madrid": "Spain",
    "Berlin": "Germany",
    "Vienna": "Austria",
    "Lisbon": "Portugal",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "cities.jsonl"
    lines = [
        {"id": city.lower(), "title": city, "text": f"{city} is the capital of {country}."}
        for city, country in CITIES.items()
    ]
    lines += [
        {"contents": f'"Filler {n}"\nA text about nothing in particular, number {n}.'}
        for n in range(200)
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def index(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(corpus, tmp_path_factory.mktemp("index") / "cities")


def test_search_does_not_import_jax(corpus: Path, tmp_path: Path) -> None:
    """bm25s alone would import jax, which takes most of the GPU memory. Later imports work."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('jax is imported')", encoding="utf-8")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from gem_tools.search import Index
index = Index.build({str(corpus)!r}, {str(tmp_path / "index")!r})
print(index.search("capital of France", 1)[0].title, "jax" in sys.modules)
import jax
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["Paris False", "jax is imported"], done.stderr


def test_best_passage_comes_first(index: Index) -> None:
    assert index.size == 206
    for city, country in CITIES.items():
        passages = index.search(f"What is the capital of {country}?", 3)
        text = f"{city} is the capital of {country}."
        assert passages[0] == Passage(city.lower(), city, text, passages[0].score)
        scores = [passage.score for passage in passages]
        assert scores == sorted(scores, reverse=True)


def test_ties_keep_the_corpus_order_and_unknown_words_match_nothing(index: Index) -> None:
    assert [p.id for p in index.search("capital", 4)] == ["paris", "rome", "madrid", "berlin"]
    assert index.search("zzyzx", 3) == []
    assert index.search("", 3) == []
    assert index.search("   ,. ", 3) == []
    assert len(index.search("capital", 1000)) == 6


def test_tool_shows_passages_and_an_empty_result_is_an_error(index: Index) -> None:
    tool = SearchTool(index, k=2)
    result = tool.call({"query": "capital of Italy"})
    assert result.text.startswith("[1] Rome\nRome is the capital of Italy.\n\n[2] ")
    assert (result.error, result.info["passages"][0]) == (False, "rome")
    assert tool.call({"query": "zzyzx"}).text == "Nothing was found."
    assert tool.call({"query": "zzyzx"}).error


def test_open_index_is_shared_by_tools_and_threads(index: Index) -> None:
    tools = [SearchTool(str(index.path)) for _ in range(3)]
    assert all(tool.index is tools[0].index for tool in tools)
    titles: list[str] = []

    def search() -> None:
        for country in CITIES.values():
            titles.append(tools[0].index.search(f"capital of {country}", 1)[0].title)

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(titles) == sorted(list(CITIES) * 8)


def test_rebuilt_index_replaces_the_old_one(tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "old words"}\n')
    assert Index.build(corpus, tmp_path / "i").search("old")
    corpus.write_text('{"text": "new words"}\n')
    index = Index.build(corpus, tmp_path / "i")
    assert index.search("new")
    assert not index.search("old")
    assert [p.name for p in tmp_path.iterdir() if "building" in p.name] == []


def test_text_files_are_split_into_passages(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.md").write_text(
        "one two three\n\nfour five\n\n" + " ".join(f"w{n}" for n in range(25))
    )
    (tmp_path / "sub" / "b.txt").write_bytes(b"caf\xe9 not utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    passages = list(read_corpus(tmp_path, words=10))
    assert [p.id for p in passages] == ["a.md#0", "a.md#1", "a.md#2", "a.md#3", "sub/b.txt#0"]
    assert passages[0].text == "one two three\n\nfour five"
    assert max(len(p.text.split()) for p in passages) <= 10
    assert sum(len(p.text.split()) for p in passages[:4]) == 30


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"text": "a"}\nnot json\n', "line 2 of .* is not JSON"),
        ('{"title": "a"}\n', "line 1 of .* has no text"),
        ("[1]\n", "line 1 of .* has no text"),
        ("", "contains no text"),
        ('{"text": "?!"}\n', "contains no text"),
    ],
)
def test_build_rejects_an_invalid_corpus(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=problem):
        Index.build(tmp_path / "c.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_invalid_paths_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no corpus at"):
        Index.build(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match="contains no .txt"):
        Index.build(tmp_path / "photos", tmp_path / "out")
    (tmp_path / "c.jsonl").write_text('{"text": "a"}')
    with pytest.raises(ConfigError, match="exists and is not an index"):
        Index.build(tmp_path / "c.jsonl", tmp_path / "photos")
    with pytest.raises(ConfigError, match="is not an index .*gem-rl index CORPUS"):
        SearchTool(tmp_path / "photos")
    with pytest.raises(ConfigError, match="needs search"):
        SearchTool()


PASSAGES = [
    Passage("a", "Alpha", "one two three four five six", 2.0),
    Passage("b", "Beta", "seven eight nine", 1.0),
]


@pytest.mark.parametrize("max_tokens", [1, 3, 4, 7, 8, 9, 12, 13, 20])
def test_passages_keep_the_token_budget(max_tokens: int) -> None:
    count = lambda text: len(text.split())  # noqa: E731 - a tokenizer in one line
    shown = show_passages(PASSAGES, max_tokens, count)
    assert count(shown) <= max_tokens
    if max_tokens >= 13:
        assert shown == "[1] Alpha\none two three four five six\n\n[2] Beta\nseven eight nine"
    elif max_tokens >= 8:
        assert shown.startswith("[1] Alpha\none two three four five six")
    if max_tokens in (4, 7, 12):
        assert shown.endswith(" ...")


def test_index_command_builds_an_index(corpus: Path, tmp_path: Path) -> None:
    def gem_rl_index(corpus: Path, out: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gem_core", "index", corpus, out],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
            timeout=120,
        )

    done = gem_rl_index(corpus, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "206 passages" in done.stdout
    assert Index.open(tmp_path / "out").search("capital of Austria")[0].title == "Vienna"
    done = gem_rl_index(tmp_path / "no", tmp_path / "x")
    assert done.returncode == 2
    assert "no corpus at" in done.stderr
