"""Policies on an OpenAI-compatible server, tested against a server process with real failures."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from project import SUPPORT

from gem_core import (
    FinishReason,
    Limits,
    Message,
    Renderer,
    Rollout,
    Sampling,
    StopReason,
    run_batch,
    run_episode,
    tasks_for,
    token_sequences,
)
from gem_core.errors import ConfigError, MissingDependencyError, NotTrainableError, PolicyError
from gem_eval.models import catalog
from gem_eval.models.openai import OpenAIChatPolicy, OpenAIPolicy

EASY = "game:GuessTheNumber-v0-easy"
SERVER = SUPPORT / "openai_server.py"


class Server:
    """The address of a running server and the requests it received."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        self.requests: list[dict[str, Any]] = []
        # read continuously: a full pipe would block the server
        self._reader = threading.Thread(
            target=lambda: self.requests.extend(map(json.loads, process.stdout)), daemon=True
        )
        self._reader.start()


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        server = Server(process)
        yield server
    finally:
        process.terminate()
        process.wait()
        server._reader.join()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as server:
        yield server.url


@pytest.fixture
def policies() -> Iterator[Any]:
    made: list[Any] = []

    def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(kind(*args, **kwargs))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def generate(policy: OpenAIPolicy, prompt: list[int] | None = None, **sampling: Any) -> Any:
    return asyncio.run(
        policy.generate([1, 2, 3] if prompt is None else prompt, Sampling(**sampling))
    )


@pytest.mark.parametrize("dialect", ["vllm", "older"])
def test_policy_returns_the_sampled_ids_and_logprobs(url, policies, dialect):
    policy = policies(OpenAIPolicy, url, dialect)
    generation = generate(policy)
    assert generation.ids[-1] == 257
    assert bytes(generation.ids[:-1]).startswith(b"\\boxed{")
    assert len(generation.logprobs) == len(generation.ids)
    assert all(p < 0 for p in generation.logprobs)
    assert generation.finish is FinishReason.STOP
    assert generation.versions is None
    policy.weight_version = 3
    assert generate(policy).versions == (3, 3)


def test_max_tokens_cuts_the_generation(url, policies):
    generation = generate(policies(OpenAIPolicy, url, "vllm"), max_tokens=4)
    assert (len(generation.ids), len(generation.logprobs)) == (4, 4)
    assert generation.finish is FinishReason.LENGTH


def test_a_named_policy_renders_with_the_template_settings(monkeypatch):
    monkeypatch.setattr(catalog, "tokenizer_named", lambda name: ByteTokenizer())
    settings = {"history": "template", "template_kwargs": {"enable_thinking": False}}
    server = "http://localhost:1/v1"
    renderer = catalog.policy_named("m", server=server, tokenizer="t", **settings).renderer
    assert (renderer.mode, renderer.template_kwargs) == ("template", {"enable_thinking": False})
    for arguments in ({"model": "random"}, {"model": "m", "server": server}):
        with pytest.raises(ConfigError, match="need a tokenizer"):
            catalog.policy_named(**arguments, **settings)


def test_a_named_policy_stops_at_the_templates_end_token_that_is_not_eos(monkeypatch):
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_id = 258
    monkeypatch.setattr(catalog, "tokenizer_named", lambda name: tokenizer)
    named = catalog.policy_named("m", server="http://localhost:1/v1", tokenizer="t")
    assert named.policy.stop_ids == [257, 258]


def test_request_contains_the_sampling_settings(policies):
    with serving() as server:
        policy = policies(
            OpenAIPolicy,
            server.url,
            "vllm",
            stop_ids=[257],
            processed_logprobs=True,
            extra={"priority": 1},
        )
        generate(
            policy,
            [7, 8],
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            max_tokens=9,
            seed=4,
            stop=("Observation:",),
        )
        generate(policy, [7, 8])
    full, plain = (r["body"] for r in server.requests)
    expected = {
        "model": "vllm",
        "prompt": [7, 8],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 4,
    }
    expected |= {
        "stop": ["Observation:"],
        "stop_token_ids": [257],
        "priority": 1,
        "return_token_ids": True,
    }
    assert {k: full[k] for k in expected} == expected
    assert (plain["top_k"], plain["top_p"], plain["repetition_penalty"]) == (-1, 1.0, 1.0)
    assert "seed" not in plain


@pytest.mark.parametrize("setting", [{"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 3}])
def test_policy_drops_logprobs_of_another_distribution(url, policies, setting):
    with pytest.warns(UserWarning, match="processed_logprobs"):
        assert generate(policies(OpenAIPolicy, url, "vllm"), **setting).logprobs is None
    policy = policies(OpenAIPolicy, url, "vllm", processed_logprobs=True)
    assert generate(policy, **setting).logprobs is not None


def test_server_without_ids_raises_with_the_remedy(url, policies):
    with pytest.raises(PolicyError, match=r"did not return the .* token ids.*OpenAIChatPolicy"):
        generate(policies(OpenAIPolicy, url, "plain"))


def test_server_that_changes_the_prompt_raises(url, policies):
    with pytest.raises(PolicyError, match="sent 3 ids, it sampled after 2 other ids"):
        generate(policies(OpenAIPolicy, url, "truncating"))


def test_aborted_request_raises(url, policies):
    with pytest.raises(PolicyError, match="abort"):
        generate(policies(OpenAIPolicy, url, "aborting"))


def test_answer_without_json_raises(url, policies):
    with pytest.raises(PolicyError, match="expected JSON"):
        generate(policies(OpenAIPolicy, url, "garbage"))


def test_unknown_model_error_names_base_url(url, policies):
    with pytest.raises(
        PolicyError,
        match=r"/v1/completions answered 404: The model `unknown` does not exist.*base_url",
    ):
        generate(policies(OpenAIPolicy, url, "unknown"))


@pytest.mark.parametrize("trouble", ["drop", "halved", "busy", "broken", "drop,busy,broken"])
def test_policy_retries_transient_failures(policies, trouble):
    with serving("--trouble", trouble) as server:
        generation = generate(policies(OpenAIPolicy, server.url, "vllm"))
    assert generation.ids[-1] == 257
    assert len(server.requests) == 1 + len(trouble.split(","))


def test_permanent_failure_error_names_address_status_and_attempts(policies):
    with serving("--trouble", "broken,broken,broken") as server:
        with pytest.raises(
            PolicyError, match=r"127.0.0.1:\d+/v1/completions answered 500: .* \(after 2 attempts\)"
        ):
            generate(policies(OpenAIPolicy, server.url, "vllm", retries=1))


def test_stopped_server_raises(policies):
    with serving() as server:
        stopped = server.url
    with pytest.raises(PolicyError, match="could not be reached"):
        generate(policies(OpenAIPolicy, stopped, "vllm", retries=0))


def test_wrong_key_is_not_retried_and_not_shown(policies, monkeypatch):
    with serving("--key", "sk-right") as server:
        with pytest.raises(PolicyError, match="answered 401.*api_key_env") as raised:
            generate(policies(OpenAIPolicy, server.url, "vllm", api_key="sk-wrong-12345"))
        assert "sk-wrong" not in str(raised.value)  # the server's answer repeats the key
        monkeypatch.setenv("GEM_TEST_KEY", "sk-right")
        assert generate(policies(OpenAIPolicy, server.url, "vllm", api_key_env="GEM_TEST_KEY")).ids
    assert len(server.requests) == 2


def test_errors_do_not_show_credentials_of_the_address(policies):
    with serving("--trouble", "broken") as server:
        url = server.url.replace("//", "//me:pass-word@")
        with pytest.raises(PolicyError) as raised:
            generate(policies(OpenAIPolicy, url, "vllm", retries=0))
    assert "pass-word" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8000"}, "http or https"),
        ({"base_url": ""}, "http or https"),
        ({"model": ""}, "model"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"max_connections": 0}, "max_connections"),
        ({"api_key_env": "GEM_NO_SUCH_VARIABLE"}, "GEM_NO_SUCH_VARIABLE"),
        ({"api_key_env": "A", "api_key": "b"}, "both"),
    ],
)
def test_policy_rejects_bad_settings(arguments, message):
    with pytest.raises(ConfigError, match=message):
        OpenAIPolicy(**{"base_url": "http://localhost:1", "model": "m", **arguments})


def test_unusable_proxy_raises(policies, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1:1")
    with pytest.raises(ConfigError, match="cannot make an HTTP client.*ALL_PROXY"):
        generate(policies(OpenAIPolicy, "http://localhost:1", "m"))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_policy_accepts_addresses_with_and_without_v1(url, policies, path):
    assert generate(policies(OpenAIPolicy, url + path, "vllm")).ids


def test_episodes_are_token_exact_despite_failed_requests(policies):
    """The server drops each request once and answers it as busy once; the episodes are the same."""
    renderer = Renderer(ByteTokenizer())
    batches = []
    for trouble in ("", "drop,busy"):
        with serving("--trouble", trouble) as server:
            policy = policies(OpenAIPolicy, server.url, "vllm", max_connections=8)
            batches.append(run_batch(tasks_for(EASY, range(24)), policy, renderer, concurrency=24))
    reliable, unreliable = batches
    assert [[t.action_ids for t in e.turns] for e in reliable] == [
        [t.action_ids for t in e.turns] for e in unreliable
    ]
    for episode in unreliable:
        assert not episode.failed
        (sequence,) = token_sequences(episode)
        assert sequence.logprobs is not None
        assert sum(sequence.mask) == sum(len(t.action_ids) for t in episode.turns)


def test_policy_serves_several_event_loops_in_turn(url, policies):
    policy = policies(OpenAIPolicy, url, "vllm")
    engine = Rollout(policy, Renderer(ByteTokenizer()), concurrency=4)
    first, second = (engine.run_batch(tasks_for(EASY, range(4))) for _ in range(2))
    assert [e.turns[0].action for e in first] == [e.turns[0].action for e in second]


def test_episodes_fail_when_the_server_is_stopped(policies):
    with serving() as server:
        stopped = server.url
    policy = policies(OpenAIPolicy, stopped, "vllm", retries=0)
    episodes = run_batch(tasks_for(EASY, range(3)), policy, Renderer(ByteTokenizer()))
    assert {e.stop for e in episodes} == {StopReason.POLICY_ERROR}
    assert all("could not be reached" in str(e.failure) for e in episodes)


def test_generation_is_cancelled_at_its_deadline(policies):
    with serving("--trouble", ",".join(["busy"] * 50)) as server:
        policy = policies(OpenAIPolicy, server.url, "vllm", retries=50)
        limits = Limits(generate_deadline=0.3)
        episode = run_episode(EASY, policy, Renderer(ByteTokenizer()), seed=0, limits=limits)
    assert episode.stop is StopReason.POLICY_DEADLINE


def test_garbage_collection_closes_the_connections(url):
    policy = OpenAIPolicy(url, "vllm")
    generate(policy)
    client_thread = policy._server._client_thread
    assert client_thread is not None
    del policy
    gc.collect()
    for _ in range(100):
        if client_thread.loop.is_closed():
            break
        threading.Event().wait(0.05)
    assert client_thread.loop.is_closed()


# Text only.


def test_chat_episodes_are_not_trainable(url, policies):
    policy = policies(OpenAIChatPolicy, url, "plain")
    episodes = run_batch(tasks_for(EASY, range(4)), policy)
    for episode in episodes:
        assert not episode.failed
        assert not episode.trainable
        assert all(t.action.startswith("\\boxed{") for t in episode.turns)
        with pytest.raises(NotTrainableError):
            token_sequences(episode)


def test_chat_sends_tool_messages_as_user_messages(policies):
    messages = [Message(role, role) for role in ("system", "user", "assistant", "tool")]
    with serving() as server:
        policy = policies(
            OpenAIChatPolicy,
            server.url,
            "plain",
            extra={"max_tokens": 3},
            max_tokens_field="max_completion_tokens",
        )
        generation = asyncio.run(policy.chat(messages, Sampling(max_tokens=3)))
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    roles = [m["role"] for m in request["body"]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert request["body"]["max_completion_tokens"] == 3
    assert not {"top_k", "top_p", "logprobs", "return_token_ids"} & set(request["body"])
    assert (generation.text, generation.ids) == ("\\bo", ())
    assert generation.finish is FinishReason.LENGTH


def test_chat_answer_without_text_is_empty(url, policies):
    policy = policies(OpenAIChatPolicy, url, "silent")
    generation = asyncio.run(policy.chat([Message("user", "hello")], Sampling()))
    assert (generation.text, generation.finish) == ("", FinishReason.EMPTY)


def test_missing_httpx_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[http\]"):
        OpenAIPolicy("http://localhost:1", "m")
