"""Retrieval: asks a search server over HTTP, in Search-R1's form: `{"queries": [...], "topk": k}` in, lists of documents out."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from gem_core.arguments import whole_number
from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.passage import Passage, show_passages
from gem_tools.tool import Tool, ToolResult

__all__ = ["RetrievalTool"]

_clients: dict[Any, Any] = {}
_lock = threading.Lock()
_LONGEST_WAIT = 30.0


class RetrievalTool(Tool):
    """A search on a server that already runs. A server that does not answer is an outage, which is no fault of the model's."""

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
        description: str = "Searches a collection of texts and shows the passages that fit best.",
    ) -> None:
        """`timeout`: seconds for one attempt; a failed one is repeated `retries` times, after `backoff` seconds, twice as long
        each time, or as long as the server asks for."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"the tool 'retrieval' needs the address of a server: retrieval(url='http://...'); given: {url!r}"
            )
        whole_number("k", k, 1)
        if retries < 0 or timeout <= 0 or backoff < 0:
            raise ConfigError(
                f"retries and backoff must be 0 or more and timeout above 0; given: {retries}, {backoff}, {timeout}"
            )
        self.url, self.k, self.max_tokens, self.count = url, k, max_tokens, count
        self.timeout, self.retries, self.backoff, self.description = (
            timeout,
            retries,
            backoff,
            description,
        )
        self._httpx = _library()
        self._headers = dict(headers or {})
        self.parameters = {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "what to look for"}},
            "required": ["query"],
        }

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Asks the server, again where that may help."""
        asked = {"queries": [str(arguments["query"])], "topk": self.k, "return_scores": True}
        attempts, problem, wait = 0, "", 0.0
        while attempts <= self.retries:
            if attempts:
                time.sleep(wait)
            attempts += 1
            wait = min(
                _LONGEST_WAIT,
                self.backoff * 2 ** (attempts - 1) * random.SystemRandom().uniform(0.8, 1.2),
            )
            try:
                answer = _client(self._httpx, self._headers).post(
                    self.url, json=asked, timeout=self.timeout
                )
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
                found = _passages(answer.json())
            except (ValueError, KeyError, TypeError, IndexError) as error:
                problem = f"the answer is not of Search-R1's form ({type(error).__name__}: {error}): {answer.text[:200]}"
                break
            info = {"attempts": attempts, "passages": [passage.id for passage in found]}
            return ToolResult(
                show_passages(found[: self.k], self.max_tokens, self.count),
                error=not found,
                info=info,
            )
        text = f"The search server cannot be used just now ({problem})."
        return ToolResult(
            text, error=True, outage=True, info={"attempts": attempts, "problem": problem}
        )

    @classmethod
    def status(cls) -> str:
        return (
            "ready"
            if find_spec("httpx")
            else "not installed; in a checkout of gem: pip install '.[http]'"
        )


def _passages(answer: Any) -> list[Passage]:
    """The documents of the first query, in any of the forms servers use."""
    results = (
        answer["result"]
        if isinstance(answer, Mapping) and "result" in answer
        else answer["results"]
    )
    found = []
    for number, item in enumerate(results[0]):
        score = float(item.get("score") or 0.0) if isinstance(item, Mapping) else 0.0
        document = item.get("document", item) if isinstance(item, Mapping) else item
        if isinstance(document, Mapping):
            text = document.get("contents") or document.get("text") or document["content"]
            title = document.get("title") or ""
            id = document.get("id", number)
        else:
            text, title, id = document, "", number
        if (
            not title and isinstance(text, str) and "\n" in text
        ):  # Search-R1 keeps the title in the first line
            title, _, text = text.partition("\n")
        found.append(Passage(str(id), str(title).strip().strip('"'), str(text), score))
    return found


def _retry_after(said: str | None, otherwise: float) -> float:
    return (
        min(_LONGEST_WAIT, float(said))
        if said is not None and said.strip().isdigit()
        else otherwise
    )


def _client(httpx: Any, headers: Mapping[str, str]) -> Any:
    """One client, so one pool of connections, for all tools with equal headers in a process: a fork inherits the sockets, and two
    that read from one take each other's answers."""
    key = (os.getpid(), *sorted(headers.items()))
    with _lock:
        if key not in _clients:
            limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
            _clients[key] = httpx.Client(headers=dict(headers), limits=limits)
        return _clients[key]


def _library() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("the retrieval tool", "http", str(error)) from error
    return httpx
