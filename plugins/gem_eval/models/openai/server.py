"""Server: an OpenAI-compatible HTTP server, and the connections to it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import urllib.parse
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from gem_http.url import Credentials, split_credentials

from gem_core.arguments import short
from gem_core.errors import ConfigError, MissingDependencyError, PolicyError

__all__ = ["Server", "ServerPolicy", "first_choice"]

_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_LONGEST_WAIT = 30.0
_TIMEOUT_ATTEMPTS = 2
"""Times to send a request that gets no answer in time; the others follow `retries`."""


class Server:
    """A server and the connections to it.

    The connections have their own event loop on their own thread, so they outlive the caller's
    event loop: every `run_batch` starts a new one.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None,
        api_key_env: str | None,
        timeout: float,
        retries: int,
        max_connections: int,
        extra: Mapping[str, Any] | None,
    ) -> None:
        self._httpx = _httpx()
        self.url, credentials = _split_url(base_url)
        self._key = _key(api_key, api_key_env)
        if not model or not isinstance(model, str):
            raise ConfigError(f"model must be the model's name on the server; got {model!r}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be above 0 seconds; got {timeout!r}")
        if retries < 0:
            raise ConfigError(f"retries must be 0 or more; got {retries!r}")
        if max_connections < 1:
            raise ConfigError(f"max_connections must be 1 or more; got {max_connections!r}")
        self.model, self._retries = model, retries
        self._secrets = [s for s in (self._key, *(credentials or ())) if s]
        self._fixed = {"model": model, **(extra or {})}
        self._options = {
            "headers": {"Authorization": f"Bearer {self._key}"} if self._key else {},
            "auth": credentials,
            # no timeout for a free connection: that wait is on our side, not on the server's
            "timeout": self._httpx.Timeout(timeout, connect=min(timeout, 30.0), pool=None),
            "limits": self._httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
        }
        self._jitter = random.Random()
        self.troubles: Counter[str] = Counter()
        self._timeout = timeout
        self._open_requests, self._last_answer = 0, 0.0
        self._lock = threading.Lock()
        self._client_thread: _ClientThread | None = None

    @property
    def silence(self) -> float:
        """Seconds since the server last answered; 0 if it owes no answer."""
        return time.monotonic() - self._last_answer if self._open_requests else 0.0

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the JSON answer; retry transient failures."""
        with self._lock:
            if self._client_thread is None:
                # `partial`, because a lambda would keep self alive
                make_client = partial(self._httpx.AsyncClient, **self._options)
                self._client_thread = _ClientThread(make_client)
                weakref.finalize(self, self._client_thread.close)
            thread = self._client_thread
        request = self._post(thread.client, path, {**body, **self._fixed})
        return await asyncio.wrap_future(thread.run(request))

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            thread, self._client_thread = self._client_thread, None
        if thread is not None:
            thread.close()
            thread.thread.join(5.0)

    async def _post(self, client: Any, path: str, body: Mapping[str, Any]) -> Any:
        url = f"{self.url}/{path}"
        timeouts = 0
        for attempt in range(self._retries + 1):
            wait = min(0.25 * 2**attempt, _LONGEST_WAIT) * (0.5 + self._jitter.random())
            try:
                response = await self._answer(client, url, body)
            except self._httpx.ReadTimeout as error:
                kind, transient, timeouts = type(error).__name__, True, timeouts + 1
                failure = f"gave no answer within {self._timeout:g} s"
                if timeouts == _TIMEOUT_ATTEMPTS:
                    self.troubles[kind] += 1
                    raise self._error(
                        f"{url} {failure} ({timeouts} attempts). "
                        "Raise the timeout, or lower max_tokens"
                    ) from None
            except self._httpx.TransportError as error:
                kind, transient = type(error).__name__, True
                failure = f"could not be reached: {kind} {error}".rstrip()
            else:
                if response.status_code == 200:
                    try:
                        return response.json()
                    except (json.JSONDecodeError, UnicodeDecodeError):
                        raise self._error(
                            f"{url} answered 200 with {short(response.text)}; expected JSON"
                        ) from None
                failure = f"answered {response.status_code}: {_error_text(response)}"
                kind = str(response.status_code)
                transient = response.status_code in _RETRIED
                wait = max(wait, _retry_after(response))
            if not transient:
                raise self._error(f"{url} {failure}{_advice(response.status_code, body)}")
            self.troubles[kind] += 1
            if attempt < self._retries:
                await asyncio.sleep(wait)
        raise self._error(f"{url} {failure} (after {self._retries + 1} attempts)")

    async def _answer(self, client: Any, url: str, body: Mapping[str, Any]) -> Any:
        """Send a request once, and note when the server answered."""
        if not self._open_requests:
            self._last_answer = time.monotonic()
        self._open_requests += 1
        try:
            response = await client.post(url, json=body)
            self._last_answer = time.monotonic()
            return response
        finally:
            self._open_requests -= 1

    def _error(self, text: str) -> PolicyError:
        """Create an error without the key, even if the server's answer repeats it."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return PolicyError(text)


class ServerPolicy:
    """Base of the policies that sample from a `Server`."""

    _server: Server

    def close(self) -> None:
        """Close the connections. Garbage collection also closes them."""
        self._server.close()

    @property
    def troubles(self) -> Mapping[str, int]:
        """Counts of transient request failures, by HTTP status or exception name."""
        return dict(self._server.troubles)

    @property
    def silence(self) -> float:
        """Seconds since the server last answered; 0 if it owes no answer."""
        return self._server.silence


class _ClientThread:
    """An HTTP client with its event loop on its own thread."""

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._ready = threading.Event()
        try:
            self.client = make_client()
        except Exception as error:
            raise ConfigError(
                f"cannot make an HTTP client: {type(error).__name__}: {error}. Check the variables "
                "that name proxies and certificates, such as ALL_PROXY and SSL_CERT_FILE"
            ) from error
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._run_client()), name="gem-http", daemon=True
        )
        self.thread.start()
        self._ready.wait()

    async def _run_client(self) -> None:
        self.loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with self.client:
            self._ready.set()
            await self._stopped.wait()
            requests = asyncio.all_tasks() - {asyncio.current_task()}
            for request in requests:
                request.cancel()
            if requests:  # a cancelled request still closes its connection
                await asyncio.wait(requests)

    def run(self, request: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(request, self.loop)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stopped.set)


def first_choice(answer: Any, url: str) -> Mapping[str, Any]:
    """Return the first choice of an answer; raise `PolicyError` if it has none or was aborted."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(f"{url} answered {short(answer)}; expected an object with 'choices'")
    choice: Mapping[str, Any] = choices[0]
    reason = choice.get("finish_reason")
    if reason in ("abort", "error"):
        raise PolicyError(f"{url} aborted the request (finish_reason {reason!r})")
    return choice


def _split_url(base_url: str) -> tuple[str, Credentials | None]:
    """Check the URL of a server; return it without user and password, and these."""
    clean, credentials = split_credentials(base_url if isinstance(base_url, str) else "")
    parts = urllib.parse.urlsplit(clean)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "base_url must be an http or https address, such as 'http://localhost:8000/v1'; "
            f"got {short(base_url)}"
        )
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}", credentials


def _key(api_key: str | None, variable: str | None) -> str | None:
    if api_key is not None and variable is not None:
        raise ConfigError("got both api_key and api_key_env; pass only one of them")
    if variable is None:
        return api_key
    value = os.environ.get(variable, "")
    if not value:
        raise ConfigError(
            f"api_key_env names the environment variable {variable}, which is not set; "
            "set it to the server's key"
        )
    return value


def _error_text(response: Any) -> str:
    """Return the error message of a response in one short line."""
    try:
        message = response.json()
        message = message.get("error", message) if isinstance(message, dict) else message
        message = message.get("message", message) if isinstance(message, dict) else message
    except (json.JSONDecodeError, UnicodeDecodeError):
        message = response.text
    return " ".join(str(message).split())[:300] or "no text"


def _advice(status: int, body: Mapping[str, Any]) -> str:
    if status in (401, 403):
        return (
            ". Pass the server's key as api_key, "
            "or the name of the environment variable that holds it as api_key_env"
        )
    if status == 404:
        return ". Check base_url (it usually ends in /v1) and the model's name"
    if "tools" in body:
        return (
            ". The request has `tools`; if the server does not support function calling, "
            "use the tools with style='json'"
        )
    return ""


def _retry_after(response: Any) -> float:
    try:
        return min(max(float(response.headers.get("retry-after", "0")), 0.0), _LONGEST_WAIT)
    except ValueError:  # a date: use the usual delay
        return 0.0


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            "a policy on an OpenAI-compatible server", "http", str(error)
        ) from error
    return httpx
