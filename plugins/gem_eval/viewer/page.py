"""The viewer as one HTML document; a page that contains its data needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from gem_core.types import Episode
from gem_eval.viewer.payload import Credit, Shelf

__all__ = ["document", "page_of", "policy"]

_SCRIPT_PARTS = ("data", "list", "overview", "episode", "group", "start")
"""The parts of the script, in order; they share one scope."""
_LINE = 1 << 16
"""Characters of base64 per line: editors and `less` fail on a line of 100 MB."""


def page_of(
    episodes: Iterable[Episode], title: str, credit: Credit | None = None, tokenizer: Any = None
) -> str:
    """Return a page that contains all episodes."""
    shelf = Shelf(credit or Credit(), tokenizer)
    gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
    parts: list[bytes] = []
    for episode in episodes:
        for line in shelf.add(episode):
            parts.append(gzip.compress(f"{line}\n".encode()))
    advantages = [[round(a, 6) for a in shelf.advantages(i)] for i in range(len(shelf))]
    parts.append(gzip.compress(json.dumps(["a", advantages]).encode()))
    parts.append(gzip.flush())
    text = base64.b64encode(b"".join(parts)).decode("ascii")
    data = "\n".join(text[i : i + _LINE] for i in range(0, len(text), _LINE))
    return document(title, shelf.credit, data)


def document(title: str, credit: Credit, data: str | None = None) -> str:
    """Return the HTML; without data, its script requests the data from its server."""
    settings = {
        "title": title,
        "estimator": credit.estimator,
        "gamma": credit.gamma,
        "live": data is None,
    }
    values = {
        "POLICY": html.escape(policy(live=data is None), quote=True),
        "TITLE": html.escape(title),
        "STYLE": _asset("viewer.css"),
        "SCRIPT": _script(),
        "SETTINGS": base64.b64encode(json.dumps(settings).encode()).decode("ascii"),
        "DATA": data or "",
    }
    page = _asset("viewer.html")
    before, *rest = page.split("{{")  # in one pass, so a value that contains {{ stays as it is
    return before + "".join(
        values[name] + text for name, _, text in (part.partition("}}") for part in rest)
    )


@cache
def policy(*, live: bool) -> str:
    """Return the content security policy: only the viewer's script, style and server."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(_script())}'",
            f"style-src '{_hash(_asset('viewer.css'))}'",
            f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


@cache
def _script() -> str:
    return "".join(_asset(f"viewer.{part}.js") for part in _SCRIPT_PARTS)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


@cache
def _asset(name: str) -> str:
    return files("gem_eval.viewer").joinpath(name).read_text(encoding="utf-8")
