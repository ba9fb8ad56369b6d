"""Link graph: the pages of a folder of HTML files, with their first paragraphs and links."""

from __future__ import annotations

import glob
import html
import os
import posixpath
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gem_core.errors import ConfigError, MissingDependencyError
from gem_envs.worlds.built_once import built_once

__all__ = ["LinkGraph", "NoDocumentationError", "Page", "link_graph", "python_docs"]

_PYTHON_DOCS = "/usr/share/doc/python3*/html"
_BODY = re.compile(r'<div class="body" role="main">(.*?)<div class="sphinxsidebar"', re.DOTALL)
_TITLE = re.compile(r"<title>(.*?)(?:\s*&#8212;.*?|\s*—.*?)?</title>", re.DOTALL)
_LINK = re.compile(r'<a [^>]*?href="([^"#:?]+\.html?)(?:#[^"]*)?"')
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_NO_PAGES = re.compile(r"(^|/)(index|genindex.*|py-modindex|search|contents|changelog)\.html?$")
"""Lists of links and of changes: with them, every page is three links from every other."""
_MOST_LINKS = 40
_LONGEST_SUMMARY = 400
_SMALLEST_GRAPH = 20


class NoDocumentationError(MissingDependencyError):
    """Raised when Python's documentation is not installed."""

    def __str__(self) -> str:
        return (
            f"{self.what} needs Python's documentation, and there is no {self.cause}. Install it "
            "(`apt-get install python3-doc`) or pass corpus=FOLDER, a folder of HTML pages"
        )


@dataclass(frozen=True)
class Page:
    """A page: its title, its first paragraph and the titles of the pages it links to."""

    title: str
    summary: str
    links: tuple[str, ...]


class LinkGraph:
    """Pages by title, with the lengths of the shortest paths between them.

    `name` is the title of the folder's first page, such as "3.11.2 Documentation".
    """

    def __init__(self, pages: Mapping[str, Page], name: str = "") -> None:
        self.pages, self.name = dict(pages), name
        self._back: dict[str, list[str]] = {title: [] for title in self.pages}
        for page in self.pages.values():
            for link in page.links:
                self._back[link].append(page.title)
        self._distances: dict[str, dict[str, int]] = {}

    def distances_to(self, target: str) -> dict[str, int]:
        """Return the number of links from every page that leads to the target."""
        if target not in self._distances:
            far, queue = {target: 0}, deque([target])
            while queue:
                title = queue.popleft()
                for before in self._back[title]:
                    if before not in far:
                        far[before] = far[title] + 1
                        queue.append(before)
            self._distances[target] = far
        return self._distances[target]


@built_once
def link_graph(folder: str) -> LinkGraph:
    """Read the pages of a folder once; all episodes of a process share the graph."""
    root = Path(folder).expanduser()
    texts = {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8", errors="replace")
        for file in sorted(root.rglob("*.htm*"))
        if not _NO_PAGES.search(file.relative_to(root).as_posix())
    }
    titles = _titles(texts)
    pages = {}
    for path, text in texts.items():
        body = match[1] if (match := _BODY.search(text)) else text
        targets = (
            posixpath.normpath(posixpath.join(posixpath.dirname(path), html.unescape(link)))
            for link in _LINK.findall(body)
        )
        links = dict.fromkeys(titles[t] for t in targets if t in titles and t != path)
        pages[titles[path]] = Page(titles[path], _summary(body), tuple(links)[:_MOST_LINKS])
    if len(pages) < _SMALLEST_GRAPH:
        raise ConfigError(
            f"{folder} has {len(pages)} HTML pages; expected at least {_SMALLEST_GRAPH}"
        )
    return LinkGraph(pages, _name(root / "index.html"))


def _name(index: Path) -> str:
    text = index.read_text(encoding="utf-8", errors="replace") if index.is_file() else ""
    return _plain(match[1]) if (match := _TITLE.search(text)) else ""


def _titles(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a title for each path; pages with the same title get their path added."""
    titles = {
        path: _plain(match[1]) if (match := _TITLE.search(text)) else path
        for path, text in texts.items()
    }
    seen: dict[str, int] = {}
    for title in titles.values():
        seen[title.lower()] = seen.get(title.lower(), 0) + 1
    return {
        path: title if seen[title.lower()] == 1 and title else f"{title} ({path})".strip()
        for path, title in titles.items()
    }


def _summary(body: str) -> str:
    for match in _PARAGRAPH.finditer(body):
        text = _plain(match[1])
        if len(text) > 30:
            return text if len(text) <= _LONGEST_SUMMARY else text[: _LONGEST_SUMMARY - 3] + "..."
    return ""


def _plain(text: str) -> str:
    return " ".join(html.unescape(_TAG.sub("", text)).split())


def python_docs() -> str:
    """Return the folder of Python's documentation, from the Debian package `python3-doc`."""
    folders = [path for path in glob.glob(_PYTHON_DOCS) if os.path.isfile(f"{path}/index.html")]
    if not folders:
        raise NoDocumentationError("WikiGame", "", _PYTHON_DOCS)
    return max(folders, key=lambda path: [int(n) for n in re.findall(r"\d+", path)])
