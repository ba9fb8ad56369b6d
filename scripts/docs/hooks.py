"""MkDocs hooks: add generated pages to the site and rewrite links to files of the repository."""

from __future__ import annotations

from functools import cache
from typing import Any

import api
import catalogue
import command_line
import configuration
import plugin_hooks
import records
from links import ROOT, Copies, source_page
from mkdocs.structure.files import File, Files

COPIES = Copies(
    {
        "trainers/trl.md": "adapters/gem_trl/README.md",
        "trainers/verl.md": "adapters/gem_verl/README.md",
        "trainers/openrlhf.md": "adapters/gem_openrlhf/README.md",
        "trainers/oat.md": "adapters/gem_oat/README.md",
        "trainers/rl2.md": "adapters/gem_rl2/README.md",
        "trainers/skyrl.md": "adapters/gem_skyrl/README.md",
        "trainers/tinker.md": "adapters/gem_tinker/README.md",
        "contributing.md": "CONTRIBUTING.md",
        "changelog.md": "CHANGELOG.md",
    }
)
"""The pages that are copies of files elsewhere in the repository."""


@cache
def generated_pages() -> dict[str, str]:
    """Return the Markdown of every page that is generated from code, by its path in the site."""
    return {
        "catalogue.md": catalogue.page(),
        "reference/config.md": configuration.page(),
        "reference/hooks.md": plugin_hooks.page(),
        "reference/cli.md": command_line.page(),
        **api.pages(),
    }


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages, the copies, and one page per source file that a page links to."""
    pages = dict(generated_pages())
    for uri, path in COPIES.by_uri.items():
        pages[uri] = (ROOT / path).read_text(encoding="utf-8")
    for file in files.documentation_pages():
        pages[file.src_uri] = file.content_string
    sources = {
        target for uri, markdown in pages.items() for target in COPIES.sources(uri, markdown)
    }
    written = {file.src_uri for file in files.documentation_pages()}
    for uri, markdown in pages.items():
        if uri not in written:
            files.append(File.generated(config, uri, content=markdown))
    for path in sorted(sources):
        uri, markdown = source_page(path)
        files.append(File.generated(config, uri, content=markdown))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Fill in tables that are generated from code, and rewrite links to files of the repository."""
    if page.file.src_uri == "records.md":
        markdown = records.with_tables(markdown)
    return COPIES.rewrite(page.file.src_uri, markdown)
