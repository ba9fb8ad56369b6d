"""OpenAI: servers that speak OpenAI's HTTP dialect as policies, with token ids where the server gives them.

`OpenAIPolicy` sends token ids to `/v1/completions` and asks for the sampled ids and logprobs back, as vLLM gives them: its
episodes can be trained. `OpenAIChatPolicy` sends messages to `/v1/chat/completions` and gets text, from any such server: its
episodes cannot, and say so.
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
    """Samples token ids behind an OpenAI-compatible server that returns them, such as vLLM.

    vLLM's logprobs are by default those *before* temperature and cuts (`--logprobs-mode raw_logprobs`). Unless the server was
    started with `--logprobs-mode processed_logprobs`, and `processed_logprobs` says so, logprobs are kept only where the two
    are the same, at temperature 1 without cuts; otherwise they are left out, with a warning.
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
        """`api_key_env` names the environment variable that holds the key; no key is sent unless one is given. `stop_ids`:
        tokens that end a turn, besides those the server knows. `extra`: further fields of each request."""
        self._server = _Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.processed_logprobs = processed_logprobs
        self.stop_ids = list(stop_ids)
        self.weight_version: int | None = None
        """Which weights the server holds, set by whoever updates them; every generation carries it."""

    def close(self) -> None:
        """Closes the connections. Garbage collection does so, too."""
        self._server.close()

    @property
    def troubles(self) -> Mapping[str, int]:
        """How often a request met a failure that passes: by HTTP status, or by the name of what broke on the way."""
        return dict(self._server.troubles)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """The sampled ids, as the server says they were sampled."""
        prompt = list(prompt_ids)
        body: dict[str, Any] = {
            "prompt": prompt,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            # a server takes defaults from the model's generation config, which would change the distribution unasked
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
        logprobs = (
            _sampled_logprobs(choice, ids, self._server)
            if self._trusts_logprobs(sampling)
            else None
        )
        versions = (
            None
            if version is None
            else (version, version if self.weight_version is None else self.weight_version)
        )
        return Generation(
            tuple(ids), logprobs, _finish(choice, bool(ids), self._server), versions=versions
        )

    def _trusts_logprobs(self, sampling: Sampling) -> bool:
        plain = sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0
        if not (plain or self.processed_logprobs):
            warnings.warn(
                f"no logprobs are kept at temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}: by "
                "default vLLM gives those before temperature and cuts. Start it with --logprobs-mode processed_logprobs and pass "
                "processed_logprobs=True, or sample at temperature 1 without cuts.",
                stacklevel=3,
            )
        return plain or self.processed_logprobs


class OpenAIChatPolicy:
    """Answers conversations through an OpenAI-compatible server, in text: for evaluation, not for training."""

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
        """As for `OpenAIPolicy`. `max_tokens_field`: newer models of some providers want `max_completion_tokens`."""
        self._server = _Server(
            base_url, model, api_key, api_key_env, timeout, retries, max_connections, extra
        )
        self.max_tokens_field = max_tokens_field

    def close(self) -> None:
        """Closes the connections. Garbage collection does so, too."""
        self._server.close()

    @property
    def troubles(self) -> Mapping[str, int]:
        """How often a request met a failure that passes: by HTTP status, or by the name of what broke on the way."""
        return dict(self._server.troubles)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        """The answer's text. Only settings that differ from a server's usual ones are sent, since many servers refuse more."""
        body: dict[str, Any] = {
            "messages": [_spoken(m) for m in messages],
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
                f"{self._server.url} answered with the content {short(text)}; text was expected"
            )
        finish = _finish(choice, bool(text), self._server)
        return Generation((), None, finish, text or "", tokens=_counted(answer))


class _Server:
    """One server and the connections to it.

    They live on an event loop of their own, on a thread of its own, so that they serve callers on any event loop, several at
    a time and one after the other: every `run_batch` starts a new one.
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
        self.url, credentials = _root(base_url)
        self._key = _key(api_key, api_key_env)
        if not model or not isinstance(model, str):
            raise ConfigError(f"model must be the name the server knows it by; given: {model!r}")
        if not timeout > 0:
            raise ConfigError(f"timeout must be above 0 seconds; given: {timeout!r}")
        if retries < 0:
            raise ConfigError(f"retries must be 0 or more; given: {retries!r}")
        if max_connections < 1:
            raise ConfigError(f"max_connections must be 1 or more; given: {max_connections!r}")
        self.model, self._retries = model, retries
        self._secrets = [s for s in (self._key, *credentials) if s]
        self._fixed = {"model": model, **(extra or {})}
        self._options = {
            "headers": {"Authorization": f"Bearer {self._key}"} if self._key else {},
            "auth": tuple(credentials) if credentials else None,
            # waiting for a free connection is not the server's fault, so it has no timeout
            "timeout": self._httpx.Timeout(timeout, connect=min(timeout, 30.0), pool=None),
            "limits": self._httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
        }
        self._jitter = random.Random()
        self.troubles: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._home: _Home | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to a request, as JSON; tried again where the server or the way to it failed for a moment."""
        with self._lock:
            if self._home is None:
                self._home = _Home(
                    partial(self._httpx.AsyncClient, **self._options)
                )  # no lambda: it would keep self alive
                weakref.finalize(self, self._home.close)
            home = self._home
        return await asyncio.wrap_future(
            home.run(self._post(home.client, path, {**body, **self._fixed}))
        )

    def close(self) -> None:
        with self._lock:
            home, self._home = self._home, None
        if home is not None:
            home.close()
            home.thread.join(5.0)

    async def _post(self, client: Any, path: str, body: Mapping[str, Any]) -> Any:
        url = f"{self.url}/{path}"
        for attempt in range(self._retries + 1):
            wait = min(0.25 * 2**attempt, _LONGEST_WAIT) * (0.5 + self._jitter.random())
            try:
                response = await client.post(url, json=body)
            except self._httpx.TransportError as error:
                kind = type(error).__name__
                trouble, again = (
                    f"could not be reached: {type(error).__name__} {error}".rstrip(),
                    True,
                )
            else:
                if response.status_code == 200:
                    try:
                        return response.json()
                    except (json.JSONDecodeError, UnicodeDecodeError):
                        raise self._error(
                            f"{url} answered 200 with {short(response.text)}; JSON was expected"
                        ) from None
                trouble = f"answered {response.status_code}: {_said(response)}"
                kind = str(response.status_code)
                again = response.status_code in _RETRIED
                wait = max(wait, _retry_after(response))
            if not again:
                raise self._error(f"{url} {trouble}{_advice(response.status_code)}")
            self.troubles[kind] += 1
            if attempt < self._retries:
                await asyncio.sleep(wait)
        raise self._error(f"{url} {trouble} (after {self._retries + 1} attempts)")

    def _error(self, text: str) -> PolicyError:
        """An error whose message holds no key, even where the server repeats it."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return PolicyError(text)


class _Home:
    """An event loop on a thread of its own, and the client that lives there."""

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._ready = threading.Event()
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self._live(make_client)), name="gem-http", daemon=True
        )
        self.thread.start()
        self._ready.wait()

    async def _live(self, make_client: Callable[[], Any]) -> None:
        self.loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with make_client() as self.client:
            self._ready.set()
            await self._stopped.wait()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for request in left:
                request.cancel()
            if left:  # a request that is being cancelled still closes its connection
                await asyncio.wait(left)

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stopped.set)


def _root(base_url: str) -> tuple[str, tuple[str, ...]]:
    """(the root all paths are put behind, user and password): those never stand in a message."""
    parts = urllib.parse.urlsplit(base_url if isinstance(base_url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"base_url must be an http or https address, as in 'http://localhost:8000/v1'; given: {short(base_url)}"
        )
    host = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/") or "/v1"
    credentials = (
        (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        if parts.username
        else ()
    )
    return f"{parts.scheme}://{host}{path}", credentials


def _key(given: str | None, variable: str | None) -> str | None:
    if given is not None and variable is not None:
        raise ConfigError("api_key and api_key_env were both given; one of them is enough")
    if variable is None:
        return given
    found = os.environ.get(variable, "")
    if not found:
        raise ConfigError(
            f"api_key_env names the environment variable {variable}, which is not set; set it to the server's key"
        )
    return found


def _spoken(message: Message) -> dict[str, str]:
    """Tool results go as the user's words: servers take a `tool` message only behind a tool call of their own making."""
    role = message.role if message.role in ("system", "user", "assistant") else "user"
    return {"role": role, "content": message.content}


def _first_choice(answer: Any, server: _Server) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise PolicyError(
            f"{server.url} answered {short(answer)}; an object with 'choices' was expected"
        )
    found: Mapping[str, Any] = choices[0]
    return found


def _sampled_ids(choice: Mapping[str, Any], prompt: list[int], server: _Server) -> list[int]:
    seen = choice.get("prompt_token_ids")
    if seen is not None and seen != prompt:
        raise PolicyError(
            f"{server.url} sampled behind a prompt of {len(seen)} ids that is not the one of {len(prompt)} ids it was given; "
            "its tokenizer or its length limit changes prompts, so that what it samples cannot be trained"
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
            f"{server.url} gives no token ids for what it sampled. vLLM does, asked with return_token_ids; with another server "
            "use OpenAIChatPolicy, whose episodes cannot be trained"
        )
    return ids


def _sampled_logprobs(
    choice: Mapping[str, Any], ids: list[int], server: _Server
) -> tuple[float, ...] | None:
    found = (choice.get("logprobs") or {}).get("token_logprobs")
    if found is None:
        return None if ids else ()
    if len(found) != len(ids) or not all(isinstance(p, (int, float)) for p in found):
        raise PolicyError(
            f"{server.url} gave {len(ids)} token ids and the logprobs {short(found)}; each id needs its own"
        )
    return tuple(float(p) for p in found)


def _counted(answer: Any) -> int | None:
    """The sampled tokens, as the server counts them."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


def _finish(choice: Mapping[str, Any], anything: bool, server: _Server) -> FinishReason:
    reason = choice.get("finish_reason")
    if reason in ("abort", "error"):
        raise PolicyError(f"{server.url} gave the request up (finish_reason {reason!r})")
    if not anything:
        return FinishReason.EMPTY
    return FinishReason.LENGTH if reason == "length" else FinishReason.STOP


def _said(response: Any) -> str:
    """What an error answer says, in one short line."""
    try:
        told = response.json()
        told = told.get("error", told) if isinstance(told, dict) else told
        told = told.get("message", told) if isinstance(told, dict) else told
    except (json.JSONDecodeError, UnicodeDecodeError):
        told = response.text
    return " ".join(str(told).split())[:300] or "nothing"


def _advice(status: int) -> str:
    if status in (401, 403):
        return ". Pass the server's key as api_key, or the name of a variable that holds it as api_key_env"
    if status == 404:
        return ". Look at base_url (it ends in /v1, as a rule) and at the model's name"
    return ""


def _retry_after(response: Any) -> float:
    try:
        return min(max(float(response.headers.get("retry-after", "0")), 0.0), _LONGEST_WAIT)
    except ValueError:  # a date; the usual waiting does
        return 0.0


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            "a policy behind an OpenAI-compatible server", "http", str(error)
        ) from error
    return httpx
