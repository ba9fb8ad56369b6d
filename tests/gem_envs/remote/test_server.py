"""Tests of the environment server and its client, in every dialect."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from project import SOURCES, SUPPORT, clean_env

from gem_core import Env, Limits, Task, make, run_batch, tasks_for
from gem_core.errors import ConfigError, EnvError, OptionError
from gem_envs.remote.agentgym import AgentGym
from gem_envs.remote.protocols import DIALECTS
from gem_envs.remote.server import Server

EASY = "game:GuessTheNumber-v0-easy"
HANGMAN = "game:Hangman-v0-easy"


class Counter(Env):
    """An environment that counts to three, crashes or waits on request, and records `close`."""

    option_names = frozenset({"start"})
    closed: list[int] = []  # noqa: RUF012 - shared by all instances
    stepping, go_on = threading.Event(), threading.Event()

    def on_reset(self, options: Mapping[str, Any]) -> Any:
        self.count = int(options.get("start", 0))
        return f"Count on from {self.count}, seed {self.seed}.", {"system": "Count.", "odd": {1, 2}}

    def on_step(self, action: str) -> Any:
        if action == "crash":
            raise RuntimeError("a wire is loose")
        if action == "leak":
            raise RuntimeError("connect host=db password=hunter2")
        if action == "info":
            return "", 0.0, False, False, {"url": "http://ann:hunter2@db", "secret": "cat"}
        if action == "exit":
            raise SystemExit(0)
        if action == "wait":
            self.stepping.set()
            self.go_on.wait(60)
        self.count += 1
        done = self.count >= 3
        return f"{self.count}", 0.5, done, False, {"success": True} if done else {}

    def on_close(self) -> None:
        self.closed.append(id(self))


class AsyncCounter(Counter):
    """An async `Counter` that checks that all its calls run on one loop."""

    async def on_reset(self, options: Mapping[str, Any]) -> Any:  # type: ignore[override]
        self.loop = asyncio.get_running_loop()
        return super().on_reset(options)

    async def on_step(self, action: str) -> Any:  # type: ignore[override]
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return super().on_step(action)

    async def on_close(self) -> None:  # type: ignore[override]
        super().on_close()


def ask(
    server: Server, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    content = body if body is None or isinstance(body, str) else json.dumps(body)
    reply = httpx.request(method, server.url + path, content=content, headers=headers, timeout=60)
    return reply.status_code, reply.json()


def post(server: Server, path: str, body: Any) -> tuple[int, Any]:
    return ask(server, "POST", path, body, **{"Content-Type": "application/json"})


def play(env: Env, seed: int, actions: list[str]) -> list[Any]:
    transcript: list[Any] = [env.reset(seed=seed)[0]]
    for action in actions:
        transcript.append(env.step(action)[:4])
        if env.ended:
            break
    return transcript


@pytest.mark.parametrize("dialect", DIALECTS)
def test_remote_episode_equals_local_episode_in_every_dialect(dialect: str) -> None:
    local = make(HANGMAN).unwrapped
    with (
        Server(lambda: make(HANGMAN).unwrapped, dialect=dialect) as server,
        AgentGym(server.url, dialect) as env,
    ):
        for seed in (3, 4):
            first, _ = local.reset(seed=seed)
            assert env.reset(seed=seed)[0] == first
            total = 0.0
            for action in [*dict.fromkeys(local.secret[:-1]), local.secret]:
                observation, reward, terminated, truncated, info = env.step(action)
                expected = local.step(action)
                assert observation == expected[0]
                assert (terminated or truncated) == (expected[2] or expected[3])
                if dialect != "webarena":  # it rewards only the last turn
                    assert reward == pytest.approx(expected[1])
                total += reward
                if env.ended:
                    break
            assert total == pytest.approx(1.0)
            assert terminated and info["success"] is True


def test_webarena_action_is_between_backticks() -> None:
    with Server(Counter, dialect="webarena") as server, AgentGym(server.url, "webarena") as env:
        env.reset(seed=1)
        with pytest.raises(EnvError, match="a wire is loose"):
            env.step("In summary, the next action is ``` crash ```")
        env.reset(seed=1)
        with pytest.raises(EnvError, match="a wire is loose"):
            env.step("Perhaps ```no```? No.</think> The next action is ```crash```")


def test_webarena_client_sees_the_end_of_a_truncated_episode() -> None:
    class Cut(Counter):
        def on_step(self, action: str) -> Any:
            return "too late", 0.0, False, True, {}

    with Server(Cut, dialect="webarena") as server:
        session = post(server, "/create", {})[1]["env_idx"]
        post(server, "/reset", {"env_idx": session, "seed": 0, "idx": 1})
        _, reply = post(server, "/step", {"env_idx": session, "action": "on"})
        assert reply["terminated"] is True, "AgentGym's client does not read `truncated`"
        assert reply["truncated"] is True
        with AgentGym(server.url, "webarena") as env:
            env.reset(seed=1)
            assert env.step("on") == ("too late", 0.0, False, True, {"success": False})


def test_gem_dialect_carries_options_infos_and_random_actions() -> None:
    with Server(Counter) as server, AgentGym(server.url) as env:
        observation, info = env.reset(seed=7, options={"start": 1})
        assert observation == "Count on from 1, seed 7."
        assert info["system"] == "Count." and info["left_out"] == ["odd"]
        assert env.step("on") == ("2", 0.5, False, False, {})
        with pytest.raises(OptionError, match="stop"):
            env.reset(seed=7, options={"stop": 1})
        with pytest.raises(EnvError, match="404.*sample_action"):
            env.sample_action()
    with Server(lambda: make(EASY)) as server, AgentGym(server.url) as env:
        env.reset(seed=1)
        assert env.sample_action().startswith("\\boxed{")
        assert env.action_example == make(EASY).action_example


def test_random_actions_vary_with_their_number() -> None:
    def random_actions(env: Env, number: int) -> list[str]:
        env.reset(seed=3)
        env.unwrapped.vary_actions(number)
        actions = []
        while not env.ended and len(actions) < 4:
            actions.append(env.sample_action())
            env.step(actions[-1])
        return actions

    with Server(lambda: make(HANGMAN)) as server, AgentGym(server.url) as remote:
        local, process = make(HANGMAN), make(HANGMAN, execution="process")
        assert remote.plays_at_random and process.unwrapped.plays_at_random
        for number in (1, 2):
            expected = random_actions(local, number)
            assert random_actions(remote, number) == expected
            assert random_actions(process, number) == expected
        assert random_actions(remote, 1) != random_actions(remote, 2)
        process.close()
    with Server(Counter) as server, AgentGym(server.url) as remote:
        assert not remote.plays_at_random


def test_requests_from_web_pages_are_rejected() -> None:
    """Web pages can send requests to local ports and point their own host names here."""
    with Server(Counter, max_sessions=1) as server:
        for headers in (
            {"Origin": "http://evil.example"},
            {"Host": "evil.example"},
            {"Host": "evil.example:80"},
            {"Host": "[::1"},
        ):
            status, reply = ask(server, "POST", "/create", **headers)
            assert (status, "web pages" in reply["error"]) == (403, True), headers
        assert ask(server, "POST", "/create", Host="localhost")[0] == 200


def test_hanging_step_does_not_delay_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_envs.remote.sessions._SECONDS_TO_CLOSE", 0.1)
    stepping, released = threading.Event(), threading.Event()

    class Hanging(Counter):
        def on_step(self, action: str) -> Any:
            stepping.set()
            released.wait(60)

    server = Server(Hanging)
    with server:
        env = AgentGym(server.url)
        env.reset(seed=0)
        env.timeout = 2.0
        with pytest.raises(EnvError, match="Timeout"):
            env.step("on")
        assert stepping.wait(60)
        begin = time.monotonic()
    assert time.monotonic() - begin < 30
    released.set()


def test_forked_process_has_its_own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    from gem_envs.remote import agentgym

    with Server(Counter) as server, AgentGym(server.url) as env:
        env.reset(seed=0)
        before = set(agentgym._clients)
        monkeypatch.setattr("os.getpid", lambda: -1)
        assert env.step("on")[0] == "1"
        assert len(set(agentgym._clients) - before) == 1


def test_concurrent_sessions_are_independent() -> None:
    actions = [f"\\boxed{{{n}}}" for n in (5, 3, 8, 1)]
    expected = [play(make(EASY), seed, actions) for seed in range(6)]
    transcripts: list[Any] = [None] * 6
    with Server(lambda: make(EASY)) as server:

        def client(seed: int) -> None:
            with AgentGym(server.url) as env:
                transcripts[seed] = play(env, seed, actions)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert transcripts == expected
        assert server.sessions == 0


def test_async_environments_are_served_on_one_loop() -> None:
    Counter.closed.clear()
    with Server(AsyncCounter) as server, AgentGym(server.url) as env:
        assert play(env, 1, ["on"] * 3)[-1] == ("3", 0.5, True, False)
    assert len(Counter.closed) == 2  # the server's probe and the session


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_idle_sessions_are_closed_and_reset_creates_a_new_one() -> None:
    Counter.closed.clear()
    with Server(Counter, idle_seconds=2.0) as server, AgentGym(server.url) as env:
        env.reset(seed=1)
        # a session ends before the thread that closes its environment
        wait_until(lambda: server.sessions == 0 and len(Counter.closed) == 2)
        with pytest.raises(EnvError, match="not valid"):
            env.step("on")
        assert env.reset(seed=2)[0] == "Count on from 0, seed 2."
        assert server.sessions == 1


def test_hanging_close_does_not_end_idle_collection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gem_envs.remote.sessions._SECONDS_TO_CLOSE", 0.1)
    released = threading.Event()

    class Hanging(Counter):
        def on_close(self) -> None:
            if hasattr(self, "count"):  # the server's probe is never reset
                released.wait(30)

    with Server(Hanging, idle_seconds=2.0) as server:
        for _ in range(2):
            number = post(server, "/create", {})[1]["id"]
            assert post(server, "/reset", {"id": number, "seed": 1})[0] == 200
            wait_until(lambda: server.sessions == 0)
        wait_until(lambda: caplog.text.count("Hanging did not close within 0.1 s") == 2)
        released.set()


def test_hanging_close_does_not_delay_the_servers_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_envs.remote.sessions._SECONDS_TO_CLOSE", 0.1)
    released = threading.Event()

    class Hanging(Counter):
        def on_close(self) -> None:
            if hasattr(self, "count"):
                released.wait(60)

    with Server(Hanging) as server:
        AgentGym(server.url).reset(seed=0)
        begin = time.monotonic()
    assert time.monotonic() - begin < 30
    released.set()


def test_close_closes_every_session() -> None:
    Counter.closed.clear()
    with Server(Counter) as server:
        for seed in range(3):
            AgentGym(server.url).reset(seed=seed)
        assert server.sessions == 3
    assert len(Counter.closed) == 4
    server.close()


def test_invalid_requests_get_the_right_status() -> None:
    with Server(Counter, max_sessions=2) as server:
        number = post(server, "/create", {})[1]["id"]
        assert ask(server, "GET", "/")[1] == {
            "env": "Counter",
            "dialect": "gem",
            "turns": None,
            "options": ["start"],
            "action_example": "action",
            "plays_at_random": False,
            "sessions": 1,
        }
        for expected, (status, reply) in {
            "409 before reset": post(server, "/step", {"id": number, "action": "on"}),
            "404 unknown path /jump": post(server, "/jump", {}),
            "405 takes POST": ask(server, "GET", "/step"),
            "405 takes GET": post(server, "/", {}),
            "405 not DELETE": ask(server, "DELETE", "/close"),
            "400 is not JSON": post(server, "/step", "{"),
            "400 a JSON object": post(server, "/step", "[1]"),
            "400 needs 'id'": post(server, "/reset", {"seed": 1}),
            "404 not valid": post(server, "/reset", {"id": 5}),
            "404 session x": post(server, "/reset", {"id": "x"}),
            "400 integer >= 0": post(server, "/reset", {"id": number, "seed": "x"}),
            "400 does not know": post(
                server, "/reset", {"id": number, "seed": 1, "options": {"stop": 1}}
            ),
            "400 must be a mapping": post(
                server, "/reset", {"id": number, "seed": 1, "options": [1]}
            ),
            "415 application/json": ask(
                server, "POST", "/reset", {"id": number}, **{"Content-Type": "text/plain"}
            ),
            "413 at most": post(server, "/step", "x" * (5 << 20)),
        }.items():
            code, _, message = expected.partition(" ")
            assert status == int(code), (expected, reply)
            assert message in reply["error"], (expected, reply)
        post(server, "/reset", {"id": number, "seed": 1})
        assert post(server, "/step", {"id": number})[0] == 400
        assert post(server, "/step", {"id": number, "action": 5})[0] == 400
        assert post(server, "/step", {"id": number, "action": "crash"}) == (
            500,
            {"error": "RuntimeError: a wire is loose"},
        )
        for _ in range(3):
            assert post(server, "/step", {"id": number, "action": "on"})[0] == 200
        assert post(server, "/step", {"id": number, "action": "on"})[0] == 409  # after the end
        assert post(server, "/create", {})[0] == 200
        assert post(server, "/create", {})[0] == 503


def test_busy_session_rejects_a_second_request() -> None:
    Counter.stepping.clear()
    Counter.go_on.clear()
    with Server(Counter) as server:
        number = post(server, "/create", {})[1]["id"]
        post(server, "/reset", {"id": number, "seed": 1})
        slow_replies: list[Any] = []

        def slow_step() -> None:
            slow_replies.append(post(server, "/step", {"id": number, "action": "wait"}))

        thread = threading.Thread(target=slow_step)
        thread.start()
        assert Counter.stepping.wait(60)
        assert post(server, "/step", {"id": number, "action": "on"})[0] == 409
        Counter.go_on.set()
        thread.join()
        assert slow_replies[0][0] == 200


def test_connection_carries_many_requests() -> None:
    with Server(Counter) as server:
        connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
        for _ in range(3):
            connection.request("POST", "/create")
            reply = connection.getresponse()
            assert reply.status == 200 and json.loads(reply.read())["id"] >= 0
        connection.close()


def test_kept_connection_does_not_wait_for_delayed_acknowledgements() -> None:
    with Server(Counter) as server:
        connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]))
        waits = []
        for _ in range(40):
            started = time.perf_counter()
            connection.request("GET", "/")
            connection.getresponse().read()
            waits.append(time.perf_counter() - started)
        connection.close()
    assert sorted(waits)[8] < 0.02  # 40 ms and more with Nagle's algorithm


def test_replies_and_logs_contain_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with Server(Counter) as server:
        number = post(server, "/create", {})[1]["id"]
        post(server, "/reset", {"id": number, "seed": 1})
        status, reply = post(server, "/step", {"id": number, "action": "leak"})
        assert status == 500
        assert reply == {"error": "RuntimeError: connect host=db password=[redacted]"}
        _, reply = post(server, "/step", {"id": number, "action": "info"})
        assert reply["info"] == {"url": "http://[redacted]@db", "secret": "cat"}
    assert "connect host=db" in caplog.text
    assert "hunter2" not in caplog.text


def test_environment_that_exits_fails_its_own_request() -> None:
    with Server(Counter) as server:
        number = post(server, "/create", {})[1]["id"]
        post(server, "/reset", {"id": number, "seed": 1})
        assert post(server, "/step", {"id": number, "action": "exit"}) == (
            500,
            {"error": "SystemExit: 0"},
        )


def test_close_does_not_wait_for_a_step() -> None:
    Counter.stepping.clear()
    Counter.go_on.clear()
    with Server(Counter) as server:
        number = post(server, "/create", {})[1]["id"]
        post(server, "/reset", {"id": number, "seed": 1})
        thread = threading.Thread(
            target=lambda: post(server, "/step", {"id": number, "action": "wait"})
        )
        thread.start()
        assert Counter.stepping.wait(60)
        Counter.closed.clear()
        assert post(server, "/close", {"id": number})[0] == 200
        assert not Counter.closed
        Counter.go_on.set()
        thread.join()
        wait_until(lambda: len(Counter.closed) == 1)  # after the step


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /reset HTTP/1.1\r\nContent-Length: 0_2\r\n\r\n{}", 413),
        (b"POST /reset HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 413),
        (
            b"POST /reset HTTP/1.1\r\nContent-Type: application/json\r\n"
            b'Content-Length: 12\r\n\r\n{"id":1e999}',
            404,
        ),
    ],
)
def test_odd_requests_get_a_status(request_: bytes, status: int) -> None:
    with Server(Counter) as server:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(request_)
            assert connection.recv(100).split()[1] == str(status).encode()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)


def test_connections_over_the_limit_get_503() -> None:
    with Server(Counter, max_connections=2) as server:
        with connected(server) as first, connected(server) as second, connected(server) as third:
            assert third.recv(100).startswith(b"HTTP/1.1 503 ")
            for connection in (first, second):
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:  # until their threads have ended
            with connected(server) as again:
                again.sendall(b"GET / HTTP/1.1\r\n\r\n")
                if again.recv(100).startswith(b"HTTP/1.1 200 "):
                    return
            time.sleep(0.05)
    raise AssertionError("closed connections still count")


def test_open_connections_end_with_the_server() -> None:
    threads = set(threading.enumerate())
    with Server(Counter) as server:
        connections = [connected(server) for _ in range(5)]
        for connection in connections:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: not set(threading.enumerate()) - threads)
    for connection in connections:
        connection.close()


def test_one_client_has_a_limit_of_sessions() -> None:
    with Server(Counter, max_sessions=3, max_sessions_per_client=2) as server:
        first = post(server, "/create", {})[1]["id"]
        assert post(server, "/create", {})[0] == 200
        status, reply = post(server, "/create", {})
        assert status == 429 and "127.0.0.1 has 2 sessions" in reply["error"]
        post(server, "/close", {"id": first})
        assert post(server, "/create", {})[0] == 200


def test_server_for_other_machines_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ConfigError, match="pass token="):
            Server(Counter, host=host)
    with pytest.raises(ConfigError, match="printable ASCII"):
        Server(Counter, token="ä")


def test_every_request_needs_the_token() -> None:
    token = "s3cret-token"
    with Server(Counter, host="0.0.0.0", token=token) as server:
        port = server.url.rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": token},
            {"Authorization": "Basic !"},
            {"Authorization": "Basic é".encode()},
            {"Authorization": "Bearer"},
        ):
            reply = httpx.get(url, headers=headers)
            assert reply.status_code == 401 and "token" in reply.json()["error"], headers
            assert token not in reply.text
            assert httpx.post(f"{url}/create", headers=headers).status_code == 401
        assert server.sessions == 0
        with AgentGym(url, headers={"Authorization": f"Bearer {token}"}) as env:
            assert env.reset(seed=1)[0] == "Count on from 0, seed 1."
        with AgentGym(f"http://gem:{token}@127.0.0.1:{port}") as env:
            assert env.reset(seed=1)[0] == "Count on from 0, seed 1."
        with pytest.raises(EnvError, match="401"):
            AgentGym(url).reset(seed=1)


def test_long_sample_number_is_ignored() -> None:
    with Server(lambda: make(EASY)) as server:
        number = post(server, "/create", {})[1]["id"]
        post(server, "/reset", {"id": number, "seed": 1})
        path = f"/sample_action?id={number}&sample={'9' * 5000}"
        assert ask(server, "GET", path)[0] == 200


@pytest.mark.parametrize("part", ["X: ", "Content-Length: 1000\r\n\r\n"])
def test_slow_request_is_cut_off(part: str) -> None:
    with Server(Counter, request_seconds=1.0) as server:
        with connected(server) as connection:
            connection.sendall(f"POST /create HTTP/1.1\r\n{part}".encode())
            started = time.monotonic()
            with suppress(OSError):
                while time.monotonic() - started < 60:
                    connection.sendall(b"a")
                    time.sleep(0.2)
            assert time.monotonic() - started < 30


def test_server_error_fails_the_episode() -> None:
    with Server(Counter) as server:
        tasks = tasks_for("agentgym:Gem-v0", seeds=[1, 2], env_kwargs={"url": server.url})
        good = run_batch(tasks, Scripted("on"))
        assert [episode.total_reward for episode in good] == [1.5, 1.5]
        bad = run_batch(tasks, Scripted("crash"))
        assert all(
            episode.failure is not None and "a wire is loose" in episode.failure.message
            for episode in bad
        )


class Scripted:
    """A player that takes the same action in every turn."""

    def __init__(self, action: str) -> None:
        self.action = action

    def act(self, env: Env, observation: str) -> str:
        return self.action


# Exchanges with AgentGym's servers. Those with textcraft, babyai and sciworld were recorded from
# the servers in AgentGym's repository. Those with searchqa and webarena, which need an index and
# web sites, were written by hand from the servers' source code.

RECORDED = json.loads((SUPPORT / "agentgym_exchanges.json").read_text(encoding="utf-8"))


@contextmanager
def replaying(answers: Callable[[str, Any], tuple[int, Any]]) -> Iterator[str]:
    """Run a mock server that calls `answers` for each request; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = answers(f"{self.command} {self.path}", json.loads(raw) if raw else None)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http_server.server_address[1]}"
        finally:
            http_server.shutdown()
            thread.join()


@pytest.mark.parametrize("dialect", RECORDED)
def test_client_replays_recorded_agentgym_episodes(dialect: str) -> None:
    """The client sends the recorded requests and parses the recorded replies."""
    record = RECORDED[dialect]
    exchanges = list(record["exchanges"])

    def answers(request: str, body: Any) -> tuple[int, Any]:
        expected = exchanges.pop(0)
        assert (request, body) == (expected["request"], expected["body"])
        return expected["status"], expected["reply"]

    with replaying(answers) as url:
        env = AgentGym(url, dialect)
        observation, _ = env.reset(seed=0, options={"index": record["index"]})
        assert observation == record["observation"]
        rewards = []
        for action in record["actions"]:
            _, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
        assert rewards == pytest.approx(record["rewards"])
        assert (terminated or truncated) and info["success"] is record["success"]
        env.close()
    assert not exchanges


@pytest.mark.parametrize("dialect", ["babyai", "sciworld", "textcraft"])
def test_error_with_status_200_raises(dialect: str) -> None:
    replies = {"POST /create": {"id": 0}, "POST /reset": {"error": "list index out of range"}}
    with (
        replaying(lambda request, _: (200, replies[request])) as url,
        pytest.raises(EnvError, match="list index out of range"),
    ):
        AgentGym(url, dialect).reset(seed=1)


def test_reset_replaces_a_session_that_the_server_forgot() -> None:
    sessions: list[int] = []
    reset = {"observation": "here", "reward": 0, "score": 0, "deleted": False, "done": False}

    def answers(request: str, body: Any) -> tuple[int, Any]:
        if request == "POST /create":
            sessions.append(len(sessions) + 1)
            return 200, {"id": sessions[-1]}
        if body["id"] == 1:
            return 200, {"error": "The id 1 is not valid."}
        return 200, reset

    with replaying(answers) as url:
        assert AgentGym(url, "babyai").reset(seed=1)[0] == "here"
    assert sessions == [1, 2]


@pytest.mark.parametrize("dialect", ["gem", "babyai"])
def test_text_of_a_server_error_does_not_replace_the_session(dialect: str) -> None:
    class Broken(Counter):
        def on_reset(self, options: Mapping[str, Any]) -> Any:
            if self.seed % 2:
                raise FileNotFoundError("task file 7 not found")
            return super().on_reset(options)

    with Server(Broken, dialect=dialect) as server, AgentGym(server.url, dialect) as env:
        env.reset(seed=0)
        for _ in range(3):
            with pytest.raises(EnvError, match="task file 7 not found"):
                env.reset(seed=1)
        env.reset(seed=2)
        assert server.sessions == 1


def test_lone_surrogate_in_an_action_is_replaced() -> None:
    class Echo(Counter):
        def on_step(self, action: str) -> Any:
            return action, 0.0, False, False, {}

    with Server(Echo) as server, AgentGym(server.url) as env:
        env.reset(seed=0)
        assert env.step("on \ud83d")[0] == "on \ufffd"


def test_webarena_timeout_observation_raises() -> None:
    replies = {
        "POST /create": {"env_idx": 0},
        "POST /reset": {"observation": "TimeoutError", "sites": "Error", "object": "Error"},
    }
    with (
        replaying(lambda request, _: (200, replies[request])) as url,
        pytest.raises(EnvError, match="restarted"),
    ):
        AgentGym(url, "webarena").reset(seed=1)


def test_malformed_replies_raise() -> None:
    def reset_error(reply: Any, dialect: str = "babyai", status: int = 200) -> str:
        def answers(request: str, body: Any) -> tuple[int, Any]:
            if request == "POST /create":
                return 200, 5 if dialect == "searchqa" else {"id": 0}
            return status, reply

        with replaying(answers) as url, pytest.raises(EnvError) as error:
            AgentGym(url, dialect).reset(seed=1)
        return str(error.value)

    assert "'observation'" in reset_error({"state": "x"})
    assert "must be a string" in reset_error({"observation": 5})
    assert "must be a string" in reset_error({"observation": "x"}, "searchqa")
    assert "422: [{'msg'" in reset_error({"detail": [{"msg": "field required"}]}, status=422)
    assert "500" in reset_error("Internal Server Error", status=500)
    with pytest.raises(EnvError, match="is the server running"):
        AgentGym("http://127.0.0.1:9").reset(seed=1)


def test_messages_do_not_show_the_token() -> None:
    for dialect in ("gem", "babyai"):
        with pytest.raises(EnvError, match=r"http://127\.0\.0\.1:9/") as error:
            AgentGym("http://gem:S3CRET@127.0.0.1:9", dialect).reset(seed=1)
        assert "S3CRET" not in str(error.value)
    for url in ("gem:S3CRET@host", "http://gem:S3CRET@[::1"):
        with pytest.raises(ConfigError, match="url must be") as wrong:
            AgentGym(url)
        assert "S3CRET" not in str(wrong.value)


def test_description_is_fetched_when_the_environment_is_made() -> None:
    with Server(lambda: make(EASY)) as server:
        env = AgentGym(server.url)
    assert env.action_example == make(EASY).action_example
    assert env.accepted_options == make(EASY).accepted_options | {"index"}
    assert env.plays_at_random


def test_silent_server_does_not_stop_other_episodes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        arguments = {"url": url, "timeout": 60.0}
        remote = Task("agentgym:Gem-v0", 1, {"start": 1}, env_kwargs=arguments, index=0)
        begin = time.monotonic()
        first, second = run_batch(
            [remote, Task(EASY, 1, index=1)],
            Scripted("\\boxed{5}"),
            limits=Limits(make_deadline=0.5),
        )
        assert time.monotonic() - begin < 30
    assert first.failure is not None and first.failure.where == "make"
    assert not second.failed


def test_client_and_server_reject_invalid_arguments() -> None:
    for arguments, message in (
        ({}, "url="),
        ({"url": "host:80"}, "url="),
        ({"url": "http://h", "dialect": "klingon"}, "dialect must be one of gem"),
        ({"url": "http://h", "tasks": 0}, "tasks must be"),
        ({"url": "http://h", "timeout": 0}, "timeout must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            AgentGym(**arguments)
    for arguments in (
        {"idle_seconds": 0},
        {"request_seconds": "x"},
        {"max_connections": 0},
        {"max_sessions_per_client": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            Server(Counter, **arguments)
    with Server(Counter) as server, pytest.raises(ConfigError, match="choose another port"):
        Server(Counter, port=int(server.url.rpartition(":")[2]))
    with pytest.raises(ConfigError, match="choose an address of this machine"):
        Server(Counter, host="192.0.2.1", token="t")  # reserved for documentation
    with pytest.raises(ConfigError, match="must return an environment; it returned int 5"):
        Server(lambda: 5)  # type: ignore[arg-type, return-value]


def test_task_is_the_seed_modulo_the_number_of_tasks() -> None:
    with (
        Server(Counter, dialect="babyai") as server,
        AgentGym(server.url, "babyai", tasks=10) as env,
    ):
        assert env.reset(seed=23)[0].endswith("seed 3.")
        assert env.reset(seed=23, options={"index": 40})[0].endswith("seed 40.")
        with pytest.raises(OptionError, match="index"):
            env.reset(seed=1, options={"index": -1})


# The command.


@contextmanager
def serving(*arguments: str, token: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = clean_env(PYTHONPATH=os.pathsep.join(SOURCES), GEM_SERVE_TOKEN=token)
    command = [sys.executable, "-m", "gem_core", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        errors = "" if line or process.stderr is None else process.stderr.read()
        assert " at http://" in line, (line, errors)
        yield process, line.split(" at ")[1].split(",")[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("signal_", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve_command_runs_until_a_signal(signal_: signal.Signals, code: int) -> None:
    player = Scripted("\\boxed{5}")
    with serving(EASY) as (process, url):
        tasks = tasks_for("agentgym:Gem-v0", seeds=[1, 2, 3], env_kwargs={"url": url})
        remote = run_batch(tasks, player)
        local = run_batch(tasks_for(EASY, seeds=[1, 2, 3]), player)
        assert [e.total_reward for e in remote] == [e.total_reward for e in local]
        process.send_signal(signal_)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code and "Traceback" not in errors


@pytest.mark.parametrize("token", ["", "chosen"])
def test_serve_command_prints_a_token_for_other_machines(token: str) -> None:
    with serving(EASY, "--host", "0.0.0.0", token=token) as (process, url):
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert process.stdout is not None
        line = process.stdout.readline()
        assert httpx.get(url).status_code == 401
        if not token:
            token = line.split("http://gem:")[1].split("@")[0]
            assert len(token) >= 32
        else:
            assert token not in line
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(url, headers=headers).json()["env"] == EASY


def test_serve_command_takes_limits() -> None:
    limits = ("--max-connections", "1", "--max-sessions-per-client", "1", "--request-seconds", "5")
    with serving(EASY, *limits) as (_, url), httpx.Client(base_url=url) as client:
        assert client.post("/create").status_code == 200
        assert client.post("/create").status_code == 429
        assert httpx.get(url).status_code == 503  # the client's connection is the only one


def test_serve_command_takes_bare_and_args() -> None:
    arguments = ("--bare", "--dialect", "textcraft", "--args", '{"max_number": 3}')
    with serving(EASY, *arguments) as (_, url), AgentGym(url, "textcraft") as env:
        assert "between 1 and 3" in env.reset(seed=1)[0]
        assert "boxed" not in env.reset(seed=1)[0]
        assert env.step("9")[0]


def test_server_listens_only_on_loopback_by_default() -> None:
    with Server(Counter) as server:
        assert server.url.startswith("http://127.0.0.1:")
        port = int(server.url.rpartition(":")[2])
        infos = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        for address in {info[4][0] for info in infos} - {"127.0.0.1", "127.0.1.1"}:
            with pytest.raises(OSError):
                socket.create_connection((address, port), 2).close()
