"""Tests of WikiGame: the link graph of a folder, distances, and walks along links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gem_core.errors import ConfigError, MissingDependencyError
from gem_envs.worlds.wiki import link_graph as module
from gem_envs.worlds.wiki.link_graph import link_graph
from gem_envs.worlds.wiki.wiki_game import WikiGame

PAGES = 24


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Return a folder in which page n links to page n + 1, and to a list of all pages."""
    for number in range(PAGES):
        folder = tmp_path / ("odd" if number % 2 else "even")
        folder.mkdir(exist_ok=True)
        other = "even" if number % 2 else "odd"
        (folder / f"p{number}.html").write_text(
            f"<html><title>Page {number} &#8212; Manual</title>"
            '<a href="../index.html">Contents</a><div class="body" role="main">'
            f"<p>This is page {number} of the manual, which is <b>quite</b> short.</p>"
            f'<a class="x" href="../{other}/p{number + 1}.html#top">next</a> '
            '<a href="https://example.org/p1.html">outside</a></div>'
            '<div class="sphinxsidebar"><a href="../even/p0.html">home</a></div></html>'
        )
    (tmp_path / "index.html").write_text(
        "<title>1.2 Manual</title>" + "".join(f'<a href="p{n}.html">' for n in range(PAGES))
    )
    return str(tmp_path)


def test_graph_has_the_links_of_the_body(corpus: str) -> None:
    graph = link_graph(corpus)
    assert len(graph.pages) == PAGES  # not the list of contents
    assert graph.name == WikiGame(corpus).corpus_name == "1.2 Manual"
    page = graph.pages["Page 3"]
    assert page.summary == "This is page 3 of the manual, which is quite short."
    assert page.links == ("Page 4",)
    assert graph.distances_to("Page 5") == {f"Page {n}": 5 - n for n in range(6)}


def test_distance_of_the_start_is_within_the_limits(corpus: str) -> None:
    env = WikiGame(corpus, min_distance=3, max_distance=5)
    for seed in range(20):
        _, info = env.reset(seed=seed)
        assert 3 <= info["distance"] <= 5


def test_wrong_title_costs_a_turn_and_back_returns(corpus: str) -> None:
    env: Any = WikiGame(corpus, min_distance=3, max_distance=5)
    env.reset(seed=0)
    start = env.path[0]
    (link,) = env.graph.pages[start].links
    assert "is not a link here" in env.step("Page 999")[0]
    assert "is not a link here" in env.step(env.target)[0]
    assert "is not a link here" in env.step("back")[0]  # there is no page before the first
    assert env.step(link.upper())[0].startswith(f"Page: {link}\n")
    assert env.step("back")[0].startswith(f"Page: {start}\n")


def test_impossible_distance_and_small_folder_are_rejected(corpus: str, tmp_path: Path) -> None:
    env = WikiGame(corpus, min_distance=90, max_distance=99)
    with pytest.raises(ConfigError, match="choose smaller distances"):
        env.reset(seed=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="0 HTML pages"):
        WikiGame(str(tmp_path / "empty"))


def test_missing_documentation_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PYTHON_DOCS", "/nowhere/python3*/html")
    with pytest.raises(MissingDependencyError, match="apt-get install python3-doc"):
        WikiGame()
