"""Policies behind an OpenAI-compatible server, against a real server in a process of its own that fails as real ones do."""

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
from gem_eval.models.openai import OpenAIChatPolicy, OpenAIPolicy

EASY = "game:GuessTheNumber-v0-easy"
SERVER = SUPPORT / "openai_server.py"


class Server:
    """The address of a running server, and what it was asked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        self.requests: list[dict[str, Any]] = []
        # read all along: a full pipe would stop the server
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


def ask(policy: OpenAIPolicy, prompt: list[int] | None = None, **sampling: Any) -> Any:
    return asyncio.run(
        policy.generate([1, 2, 3] if prompt is None else prompt, Sampling(**sampling))
    )


@pytest.mark.parametrize("dialect", ["vllm", "older"])
def test_ids_and_logprobs_come_back_as_they_were_sampled(url, policies, dialect):
    policy = policies(OpenAIPolicy, url, dialect)
    found = ask(policy)
    assert found.ids[-1] == 257
    assert bytes(found.ids[:-1]).startswith(b"\\boxed{")
    assert len(found.logprobs) == len(found.ids)
    assert all(p < 0 for p in found.logprobs)
    assert found.finish is FinishReason.STOP
    assert found.versions is None
    policy.weight_version = 3
    assert ask(policy).versions == (3, 3)


def test_the_cap_cuts(url, policies):
    found = ask(policies(OpenAIPolicy, url, "vllm"), max_tokens=4)
    assert (len(found.ids), len(found.logprobs), found.finish) == (4, 4, FinishReason.LENGTH)


def test_what_is_asked_for(policies):
    with serving() as server:
        policy = policies(
            OpenAIPolicy,
            server.url,
            "vllm",
            stop_ids=[257],
            processed_logprobs=True,
            extra={"priority": 1},
        )
        ask(
            policy,
            [7, 8],
            temperature=0.5,
            top_p=0.9,
            top_k=5,
            max_tokens=9,
            seed=4,
            stop=("Observation:",),
        )
        ask(policy, [7, 8])
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
def test_logprobs_of_another_distribution_are_left_out(url, policies, setting):
    with pytest.warns(UserWarning, match="processed_logprobs"):
        assert ask(policies(OpenAIPolicy, url, "vllm"), **setting).logprobs is None
    assert (
        ask(policies(OpenAIPolicy, url, "vllm", processed_logprobs=True), **setting).logprobs
        is not None
    )


def test_a_server_without_ids_is_refused_with_the_remedy(url, policies):
    with pytest.raises(PolicyError, match=r"gives no token ids.*OpenAIChatPolicy"):
        ask(policies(OpenAIPolicy, url, "plain"))


def test_a_server_that_changes_the_prompt_is_refused(url, policies):
    with pytest.raises(PolicyError, match="a prompt of 2 ids that is not the one of 3 ids"):
        ask(policies(OpenAIPolicy, url, "truncating"))


def test_a_request_the_server_gave_up_is_an_error(url, policies):
    with pytest.raises(PolicyError, match="abort"):
        ask(policies(OpenAIPolicy, url, "aborting"))


def test_an_answer_that_is_no_json_is_an_error(url, policies):
    with pytest.raises(PolicyError, match="JSON was expected"):
        ask(policies(OpenAIPolicy, url, "garbage"))


def test_an_unknown_model_says_where_to_look(url, policies):
    with pytest.raises(
        PolicyError,
        match=r"/v1/completions answered 404: The model `unknown` does not exist.*base_url",
    ):
        ask(policies(OpenAIPolicy, url, "unknown"))


@pytest.mark.parametrize("trouble", ["drop", "halved", "busy", "broken", "drop,busy,broken"])
def test_momentary_trouble_is_tried_again(policies, trouble):
    with serving("--trouble", trouble) as server:
        found = ask(policies(OpenAIPolicy, server.url, "vllm"))
    assert found.ids[-1] == 257
    assert len(server.requests) == 1 + len(trouble.split(","))


def test_lasting_trouble_names_address_status_and_attempts(policies):
    with serving("--trouble", "broken,broken,broken") as server:
        with pytest.raises(
            PolicyError, match=r"127.0.0.1:\d+/v1/completions answered 500: .* \(after 2 attempts\)"
        ):
            ask(policies(OpenAIPolicy, server.url, "vllm", retries=1))


def test_a_server_that_is_not_there(policies):
    with serving() as server:
        gone = server.url
    with pytest.raises(PolicyError, match="could not be reached"):
        ask(policies(OpenAIPolicy, gone, "vllm", retries=0))


def test_a_wrong_key_is_not_tried_again_and_no_message_holds_a_key(policies, monkeypatch):
    with serving("--key", "sk-right") as server:
        with pytest.raises(PolicyError, match="answered 401.*api_key_env") as refused:
            ask(policies(OpenAIPolicy, server.url, "vllm", api_key="sk-wrong-12345"))
        assert "sk-wrong" not in str(refused.value)  # the server repeats it
        monkeypatch.setenv("GEM_TEST_KEY", "sk-right")
        assert ask(policies(OpenAIPolicy, server.url, "vllm", api_key_env="GEM_TEST_KEY")).ids
    assert len(server.requests) == 2


def test_credentials_in_the_address_are_kept_out_of_messages(policies):
    with serving("--trouble", "broken") as server:
        with pytest.raises(PolicyError) as refused:
            ask(
                policies(
                    OpenAIPolicy, server.url.replace("//", "//me:pass-word@"), "vllm", retries=0
                )
            )
    assert "pass-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
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
def test_bad_settings_are_refused(arguments, named):
    with pytest.raises(ConfigError, match=named):
        OpenAIPolicy(**{"base_url": "http://localhost:1", "model": "m", **arguments})


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1_or_not(url, policies, path):
    assert ask(policies(OpenAIPolicy, url + path, "vllm")).ids


def test_whole_episodes_over_a_bad_line_are_token_exact(policies):
    """Each request is dropped, refused and broken once; the episodes are those of a good line all the same."""
    renderer = Renderer(ByteTokenizer())
    played = []
    for trouble in ("", "drop,busy"):
        with serving("--trouble", trouble) as server:
            policy = policies(OpenAIPolicy, server.url, "vllm", max_connections=8)
            played.append(run_batch(tasks_for(EASY, range(24)), policy, renderer, concurrency=24))
    good, bad = played
    assert [[t.action_ids for t in e.turns] for e in good] == [
        [t.action_ids for t in e.turns] for e in bad
    ]
    for episode in bad:
        assert not episode.failed
        (view,) = token_sequences(episode)
        assert view.logprobs is not None
        assert sum(view.mask) == sum(len(t.action_ids) for t in episode.turns)


def test_one_policy_serves_one_event_loop_after_the_other(url, policies):
    policy = policies(OpenAIPolicy, url, "vllm")
    engine = Rollout(policy, Renderer(ByteTokenizer()), concurrency=4)
    first, second = (engine.run_batch(tasks_for(EASY, range(4))) for _ in range(2))
    assert [e.turns[0].action for e in first] == [e.turns[0].action for e in second]


def test_a_server_that_dies_voids_its_episodes_and_nothing_else(policies):
    with serving() as server:
        gone = server.url
    policy = policies(OpenAIPolicy, gone, "vllm", retries=0)
    episodes = run_batch(tasks_for(EASY, range(3)), policy, Renderer(ByteTokenizer()))
    assert {e.stop for e in episodes} == {StopReason.POLICY_ERROR}
    assert all("could not be reached" in str(e.failure) for e in episodes)


def test_a_generation_may_be_cancelled(policies):
    with serving("--trouble", ",".join(["busy"] * 50)) as server:
        policy = policies(OpenAIPolicy, server.url, "vllm", retries=50)
        limits = Limits(generate_deadline=0.3)
        episode = run_episode(EASY, policy, Renderer(ByteTokenizer()), seed=0, limits=limits)
    assert episode.stop is StopReason.POLICY_DEADLINE


def test_connections_are_closed_with_the_policy(url):
    policy = OpenAIPolicy(url, "vllm")
    ask(policy)
    home = policy._server._home
    assert home is not None
    del policy
    gc.collect()
    for _ in range(100):
        if home.loop.is_closed():
            break
        threading.Event().wait(0.05)
    assert home.loop.is_closed()


# Text only.


def test_chat_plays_and_its_episodes_cannot_be_trained(url, policies):
    policy = policies(OpenAIChatPolicy, url, "plain")
    episodes = run_batch(tasks_for(EASY, range(4)), policy)
    for episode in episodes:
        assert not episode.failed
        assert not episode.trainable
        assert all(t.action.startswith("\\boxed{") for t in episode.turns)
        with pytest.raises(NotTrainableError):
            token_sequences(episode)


def test_chat_sends_the_conversation_in_roles_every_server_takes(policies):
    said = [
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "a"),
        Message("tool", "t"),
    ]
    with serving() as server:
        policy = policies(
            OpenAIChatPolicy,
            server.url,
            "plain",
            extra={"max_tokens": 3},
            max_tokens_field="max_completion_tokens",
        )
        found = asyncio.run(policy.chat(said, Sampling(max_tokens=3)))
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert [m["role"] for m in request["body"]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert request["body"]["max_completion_tokens"] == 3
    assert not {"top_k", "top_p", "logprobs", "return_token_ids"} & set(request["body"])
    assert (found.text, found.ids, found.finish) == ("\\bo", (), FinishReason.LENGTH)


def test_a_silent_chat_answer_is_empty(url, policies):
    found = asyncio.run(
        policies(OpenAIChatPolicy, url, "silent").chat([Message("user", "hello")], Sampling())
    )
    assert (found.text, found.finish) == ("", FinishReason.EMPTY)


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[http\]"):
        OpenAIPolicy("http://localhost:1", "m")
