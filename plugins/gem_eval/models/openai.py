"""Policies that sample from OpenAI-compatible servers.

`OpenAIPolicy` sends token ids to `/v1/completions` and receives the sampled ids and logprobs, which
vLLM returns: its episodes can be trained on. `OpenAIChatPolicy` sends messages to
`/v1/chat/completions` of any such server and receives text: its episodes cannot be trained on.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import urllib.parse
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from gem_core.arguments import short
from gem_core.errors import ConfigError, MissingDependencyError, PolicyError
from gem_core.types import FinishReason, Generation, Message, Sampling

__all__ = ["OpenAIChatPolicy", "OpenAIPolicy"]

_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_LONGEST_WAIT = 30.0


class OpenAIPolicy:
    """Sample token ids from an OpenAI-compatible server that returns them, such as vLLM.

    By default vLLM returns logprobs from *before* temperature, top-p and top-k
    (`--logprobs-mode raw_logprobs`). They equal the sampling logprobs only at temperature 1 without
    top-p and top-k. With other settings the policy drops them with a warning, unless the server
    runs with `--logprobs-mode processed_logprobs` and `processed_logprobs` is True.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        processed_logprobs: bool = False,
        stop_ids: Sequence[int] = (),
        timeout: float = 600.0,
        retries: int = 5,
        max_connections: int = 256,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Check the settings; the connection opens with the first request.

        `api_key_env`: the environment variable that holds the key. `stop_ids`: tokens that end a
        turn, besides the server's own. `extra`: extra fields of each request.
        """
        self._server = _Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.processed_logprobs = processed_logprobs
        self.stop_ids = list(stop_ids)
        self.weight_version: int | None = None
        """Version of the server's weights. The code that updates the weights sets it."""

    def close(self) -> None:
        """Close the connections. Garbage collection also closes them."""
        self._server.close()

    @property
    def troubles(self) -> Mapping[str, int]:
        """Counts of transient request failures, by HTTP status or exception name."""
        return dict(self._server.troubles)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Sample from the server and return exactly the ids that it sampled."""
        prompt = list(prompt_ids)
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            # override the server's defaults, which it reads from the model's generation config
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if self.stop_ids:
            body["stop_token_ids"] = self.stop_ids
        if sampling.stop:
            body |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        version = self.weight_version
        choice = _first_choice(await self._server.post("completions", body), self._server)
        ids = _sampled_ids(choice, prompt, self._server)
        logprobs = None
        if self._trusts_logprobs(sampling):
            logprobs = _sampled_logprobs(choice, ids, self._server)
        versions = None
        if version is not None:
            after = self.weight_version
            versions = (version, version if after is None else after)
        finish = _finish(choice, bool(ids), self._server)
        return Generation(tuple(ids), logprobs, finish, versions=versions)

    def _trusts_logprobs(self, sampling: Sampling) -> bool:
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
        if not (plain or self.processed_logprobs):
            warnings.warn(
                f"dropping logprobs at temperature={sampling.temperature}, "
                f"top_p={sampling.top_p}, top_k={sampling.top_k}: "
                "by default vLLM returns logprobs from before temperature, top-p and top-k. "
                "Start it with --logprobs-mode processed_logprobs and pass "
                "processed_logprobs=True, or sample at temperature 1 without top-p and top-k.",
                stacklevel=3,
            )
        return plain or self.processed_logprobs


class OpenAIChatPolicy:
    """Chat with an OpenAI-compatible server in text: for evaluation, not for training."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_env: str | None = None,
        timeout: float = 600.0,
        retries: int = 5,
        max_connections: int = 64,
        max_tokens_field: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """The arguments are those of `OpenAIPolicy`.

        `max_tokens_field`: some newer models want `max_completion_tokens`.
        """
        self._server = _Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.max_tokens_field = max_tokens_field

    def close(self) -> None:
        """Close the connections. Garbage collection also closes them."""
        self._server.close()

    @property
    def troubles(self) -> Mapping[str, int]:
        """Counts of transient request failures, by HTTP status or exception name."""
        return dict(self._server.troubles)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        """Return the text of the answer.

        Requests omit settings with default values, because many servers reject unknown fields.
        """
        body: dict[str, Any] = {
            "messages": [_chat_message(m) for m in messages],
            "temperature": sampling.temperature,
            self.max_tokens_field: sampling.max_tokens,
        }
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        answer = await self._server.post("chat/completions", body)
        choice = _first_choice(answer, self._server)
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        if not (text is None or isinstance(text, str)):
            raise PolicyError(
                f"{self._server.url} answered with the content {short(text)}; expected text"
            )
        finish = _finish(choice, bool(text), self._server)
        return Generation((), None, finish, text or "", tokens=_completion_tokens(answer))


class _Server:
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
        self._secrets = [s for s in (self._key, *credentials) if s]
        self._fixed = {"model": model, **(extra or {})}
        self._options = {
            "headers": {"Authorization": f"Bearer {self._key}"} if self._key else {},
            "auth": tuple(credentials) if credentials else None,
            # no timeout for a free connection: that wait is on our side, not on the server's
            "timeout": self._httpx.Timeout(timeout, connect=min(timeout, 30.0), pool=None),
            "limits": self._httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
        }
        self._jitter = random.Random()
        self.troubles: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._client_thread: _ClientThread | None = None

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
        with self._lock:
            thread, self._client_thread = self._client_thread, None
        if thread is not None:
            thread.close()
            thread.thread.join(5.0)

    async def _post(self, client: Any, path: str, body: Mapping[str, Any]) -> Any:
        url = f"{self.url}/{path}"
        for attempt in range(self._retries + 1):
            wait = min(0.25 * 2**attempt, _LONGEST_WAIT) * (0.5 + self._jitter.random())
            try:
                response = await client.post(url, json=body)
            except self._httpx.TransportError as error:
                kind = type(error).__name__
                failure = f"could not be reached: {kind} {error}".rstrip()
                transient = True
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
                raise self._error(f"{url} {failure}{_advice(response.status_code)}")
            self.troubles[kind] += 1
            if attempt < self._retries:
                await asyncio.sleep(wait)
        raise self._error(f"{url} {failure} (after {self._retries + 1} attempts)")

    def _error(self, text: str) -> PolicyError:
        """Create an error without the key, even if the server's answer repeats it."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return PolicyError(text)


class _ClientThread:
    """An HTTP client with its event loop on its own thread."""

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._ready = threading.Event()
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._run_client(make_client)), name="gem-http", daemon=True
        )
        self.thread.start()
        self._ready.wait()

    async def _run_client(self, make_client: Callable[[], Any]) -> None:
        self.loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with make_client() as self.client:
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


def _split_url(base_url: str) -> tuple[str, tuple[str, ...]]:
    """Split off user and password, so no message shows them; return (URL, credentials)."""
    parts = urllib.parse.urlsplit(base_url if isinstance(base_url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "base_url must be an http or https address, such as 'http://localhost:8000/v1'; "
            f"got {short(base_url)}"
        )
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/") or "/v1"
    credentials = (
        (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        if parts.username
        else ()
    )
    return f"{parts.scheme}://{host}{path}", credentials


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


def _chat_message(message: Message) -> dict[str, str]:
    """Convert a message; tool results become user messages.

    Servers accept a `tool` message only after a tool call that they generated.
    """
    role = message.role if message.role in ("system", "user", "assistant") else "user"
    return {"role": role, "content": message.content}


def _first_choice(answer: Any, server: _Server) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(
            f"{server.url} answered {short(answer)}; expected an object with 'choices'"
        )
    choice: Mapping[str, Any] = choices[0]
    return choice


def _sampled_ids(choice: Mapping[str, Any], prompt: list[int], server: _Server) -> list[int]:
    server_prompt = choice.get("prompt_token_ids")
    if server_prompt is not None and server_prompt != prompt:
        raise PolicyError(
            f"{server.url} changed the prompt: sent {len(prompt)} ids, it sampled after "
            f"{len(server_prompt)} other ids. Its samples cannot be trained on; "
            "check its tokenizer and its length limit"
        )
    ids = choice.get("token_ids")
    if ids is None:
        tokens = (choice.get("logprobs") or {}).get("tokens") or []
        if all(
            isinstance(t, str)
            and t.removeprefix("token_id:").isdigit()
            and t.startswith("token_id:")
            for t in tokens
        ):
            ids = [int(t.removeprefix("token_id:")) for t in tokens]
    if (
        not isinstance(ids, list)
        or not all(isinstance(i, int) for i in ids)
        or (not ids and choice.get("text"))
    ):
        raise PolicyError(
            f"{server.url} did not return the sampled token ids. "
            "vLLM returns them for return_token_ids; for other servers "
            "use OpenAIChatPolicy, whose episodes cannot be trained on"
        )
    return ids


def _sampled_logprobs(
    choice: Mapping[str, Any], ids: list[int], server: _Server
) -> tuple[float, ...] | None:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if logprobs is None:
        return None if ids else ()
    if len(logprobs) != len(ids) or not all(isinstance(p, (int, float)) for p in logprobs):
        raise PolicyError(
            f"{server.url} returned {len(ids)} token ids and the logprobs {short(logprobs)}; "
            "expected one logprob per id"
        )
    return tuple(float(p) for p in logprobs)


def _completion_tokens(answer: Any) -> int | None:
    """Return the server's count of sampled tokens."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def _finish(choice: Mapping[str, Any], has_output: bool, server: _Server) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason in ("abort", "error"):
        raise PolicyError(f"{server.url} aborted the request (finish_reason {reason!r})")
    if not has_output:
        return FinishReason.EMPTY
    return FinishReason.LENGTH if reason == "length" else FinishReason.STOP


def _error_text(response: Any) -> str:
    """Return the error message of a response in one short line."""
    try:
        message = response.json()
        message = message.get("error", message) if isinstance(message, dict) else message
        message = message.get("message", message) if isinstance(message, dict) else message
    except (json.JSONDecodeError, UnicodeDecodeError):
        message = response.text
    return " ".join(str(message).split())[:300] or "no text"


def _advice(status: int) -> str:
    if status in (401, 403):
        return (
            ". Pass the server's key as api_key, "
            "or the name of the environment variable that holds it as api_key_env"
        )
    if status == 404:
        return ". Check base_url (it usually ends in /v1) and the model's name"
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
