"""Links: a page links to files of the repository; the site has a page for each of them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["ROOT", "Copies", "outside_code", "source_page"]

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
_CODE = re.compile(r"^(```|~~~).*?^\1[ ]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LANGUAGES = {".py": "python", ".cfg": "ini", ".toml": "toml", ".md": "markdown", ".txt": "text"}
_GENERATED_FROM = {
    "README.md": "index.md",
    "gem_core/training/config.py": "reference/config.md",
    "gem_core/plugins/hookspecs.py": "reference/hooks.md",
}
"""The page of each file that the site documents in another form."""
_SHOWN = 400
"""Lines of a source file that its page shows."""


class Copies:
    """Pages that are copies of files elsewhere in the repository, and the links between pages."""

    def __init__(self, by_uri: Mapping[str, str]) -> None:
        self.by_uri = dict(by_uri)
        """The path in the repository of each copy, by its path in the site."""
        self._by_path = {path: uri for uri, path in self.by_uri.items()} | _GENERATED_FROM

    def sources(self, uri: str, markdown: str) -> set[str]:
        """Return the files of the repository that a page links to and that are not pages."""
        targets = set()

        def note(path: str, anchor: str) -> str:
            if self._uri_of(path) is None and (ROOT / path).exists():
                targets.add(path)
            return ""

        self._replace(uri, markdown, note)
        return targets

    def rewrite(self, uri: str, markdown: str) -> str:
        """Return the page with links that work in the site."""

        def link(path: str, anchor: str) -> str:
            target = self._uri_of(path)
            if target is None:
                if not (ROOT / path).exists():
                    return ""  # left as it is: MkDocs reports it
                target, anchor = source_page(path)[0], ""
            return posixpath.relpath(target, posixpath.dirname(uri) or ".") + anchor

        return self._replace(uri, markdown, link)

    def _uri_of(self, path: str) -> str | None:
        if path in self._by_path:
            return self._by_path[path]
        return path.removeprefix("docs/") if path.startswith("docs/") else None

    def _replace(self, uri: str, markdown: str, link: Callable[[str, str], str]) -> str:
        folder = posixpath.dirname(self.by_uri.get(uri, f"docs/{uri}"))

        def replaced(match: re.Match[str]) -> str:
            path = posixpath.normpath(posixpath.join(folder, match[1]))
            return link(path, match[2] or "") or match[0]

        return outside_code(markdown, lambda text: _LINK.sub(replaced, text))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Return the page with its text changed and its code as it is."""
    parts, end = [], 0
    for code in _CODE.finditer(markdown):
        parts += [change(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(markdown[end:])])


def source_page(path: str) -> tuple[str, str]:
    """Return the path in the site and the Markdown of the page of a source file or folder."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(
            str(each.relative_to(ROOT))
            for each in file.rglob("*")
            if each.is_file() and "__pycache__" not in each.parts
        )
        listing = "\n".join(f"- `{name}`" for name in names)
        return (
            f"source/{path}/index.md",
            f"# `{path}/`\n\nA folder of the repository:\n\n{listing}\n",
        )
    lines = file.read_text(encoding="utf-8").splitlines()
    rest = f"\n{len(lines) - _SHOWN} more lines.\n" if len(lines) > _SHOWN else ""
    language = _LANGUAGES.get(file.suffix, "text")
    code = "\n".join(lines[:_SHOWN])
    return f"source/{path}.md", f"# `{path}`\n\n````{language}\n{code}\n````\n{rest}"
