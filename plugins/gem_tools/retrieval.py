"""Retrieval tool: queries a search server over HTTP with Search-R1's protocol.

The request is `{"queries": [...], "topk": k}`; the reply has a list of documents per query. Both
are JSON, or MessagePack for the servers of the reference GEM.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Literal

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.wrappers.formats import without_surrogates
from gem_tools.arguments import finite_number, positive_number
from gem_tools.passage import Passage, show_passages
from gem_tools.tool import Tool, ToolResult

__all__ = ["RetrievalTool"]

_clients: dict[Any, Any] = {}
_lock = threading.Lock()
_LONGEST_WAIT = 30.0


class RetrievalTool(Tool):
    """A search on a running server; a server that does not answer is an outage."""

    name = "search"
    main_argument = "query"
    example = "a few words"
    deterministic = False

    def __init__(
        self,
        url: str = "",
        *,
        k: int = 3,
        max_tokens: int | None = 500,
        count: Callable[[str], int] | None = None,
        timeout: float = 10.0,
        retries: int = 3,
        backoff: float = 0.5,
        headers: Mapping[str, str] | None = None,
        encoding: Literal["json", "msgpack"] = "json",
        description: str = "Searches a collection of texts and shows the passages that fit best.",
    ) -> None:
        """Configure the tool.

        `timeout` is the time limit of one attempt in seconds. A failed attempt is repeated up to
        `retries` times. The pause is `backoff` seconds, doubled each time, or the server's
        `Retry-After`. `encoding` is that of requests and replies.
        """
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                "the tool 'retrieval' needs the address of a server: "
                f"retrieval(url='http://...'); got {url!r}"
            )
        whole_number("k", k, 1)
        self.url, self.k, self.max_tokens, self.count = url, k, max_tokens, count
        self.timeout = positive_number("timeout", timeout)
        self.retries = whole_number("retries", retries, 0)
        self.backoff = finite_number("backoff", backoff)
        if self.backoff < 0:
            raise ConfigError(f"backoff must be 0 or more seconds; got {backoff}")
        self.description = description
        if encoding not in ("json", "msgpack"):
            raise ConfigError(f"encoding must be 'json' or 'msgpack'; got {encoding!r}")
        self._msgpack = _msgpack() if encoding == "msgpack" else None
        self._httpx = _library()
        self._headers = dict(headers or {})
        self.parameters = {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for"}},
            "required": ["query"],
        }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Query the server; retry after errors that may be temporary."""
        query = without_surrogates(str(arguments["query"]))
        body = {"queries": [query], "topk": self.k, "return_scores": True}
        client = _client(self._httpx, self._headers)
        attempts, problem, wait = 0, "", 0.0
        while attempts <= self.retries:
            if attempts:
                time.sleep(wait)
            attempts += 1
            jitter = random.SystemRandom().uniform(0.8, 1.2)
            wait = min(_LONGEST_WAIT, self.backoff * 2 ** (attempts - 1) * jitter)
            try:
                answer = client.post(self.url, timeout=self.timeout, **self._encoded(body))
            except self._httpx.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == 429 or answer.status_code >= 500:
                problem = f"the server answered {answer.status_code}"
                wait = _retry_after(answer.headers.get("retry-after"), wait)
                continue
            if answer.status_code != 200:
                problem = f"the server answered {answer.status_code}: {answer.text[:200]}"
                break
            try:
                passages = _passages(self._decoded(answer))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                problem = (
                    "the answer is not of Search-R1's form "
                    f"({type(error).__name__}: {error}): {answer.text[:200]}"
                )
                break
            text = show_passages(passages[: self.k], self.max_tokens, self.count)
            info = {"attempts": attempts, "passages": [passage.id for passage in passages]}
            return ToolResult(text, error=not passages, info=info)
        text = f"The search server cannot be used just now ({problem})."
        return ToolResult(
            text, error=True, outage=True, info={"attempts": attempts, "problem": problem}
        )

    def _encoded(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._msgpack is None:
            return {"json": body}
        return {
            "content": self._msgpack.packb(body),
            "headers": {"content-type": "application/msgpack"},
        }

    def _decoded(self, answer: Any) -> Any:
        if self._msgpack is None:
            return answer.json()
        try:
            return self._msgpack.unpackb(answer.content)
        except Exception as error:  # msgpack has many kinds of errors
            raise ValueError(f"no MessagePack: {error}") from error

    @classmethod
    def status(cls) -> str:
        if find_spec("httpx"):
            return "ready"
        return "not installed; in a checkout of gem: pip install '.[http]'"


def _passages(answer: Any) -> list[Passage]:
    """Return the documents of the first query, in any of the formats that servers use."""
    one = isinstance(answer, Mapping) and "result" in answer
    results = answer["result"] if one else answer["results"]
    passages = []
    for number, item in enumerate(results[0]):
        score = float(item.get("score") or 0.0) if isinstance(item, Mapping) else 0.0
        document = item.get("document", item) if isinstance(item, Mapping) else item
        if isinstance(document, Mapping):
            text = document.get("contents") or document.get("text") or document["content"]
            title = document.get("title") or ""
            id = document.get("id", number)
        else:
            text, title, id = document, "", number
        # Search-R1 puts the title into the first line.
        if not title and isinstance(text, str) and "\n" in text:
            title, _, text = text.partition("\n")
        passages.append(Passage(str(id), str(title).strip().strip('"'), str(text), score))
    return passages


def _retry_after(header: str | None, default: float) -> float:
    if header is None or not header.strip().isdigit():
        return default
    return min(_LONGEST_WAIT, float(header))


def _client(httpx: Any, headers: Mapping[str, str]) -> Any:
    """Return the HTTP client that all tools with equal headers in a process share.

    A forked process gets its own: on inherited sockets, two processes would read each other's
    replies.
    """
    key = (os.getpid(), *sorted(headers.items()))
    with _lock:
        if key not in _clients:
            limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
            _clients[key] = httpx.Client(headers=dict(headers), limits=limits)
        return _clients[key]


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise MissingDependencyError(
            "encoding='msgpack' of the retrieval tool", "msgpack", str(error)
        ) from error
    return msgpack


def _library() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("the retrieval tool", "http", str(error)) from error
    return httpx
