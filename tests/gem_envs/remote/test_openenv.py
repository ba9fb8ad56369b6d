"""Servers made with the real `openenv` package are environments: text in, text out."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from project import SUPPORT

from gem_check.checker import check_env
from gem_core import Env, make, run_batch, tasks_for
from gem_core.errors import ConfigError, EnvError, OptionError

ID = "openenv:Server-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(SUPPORT / "openenv_server.py"), str(port)]
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"{url}/number/health").close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


class Halving:
    """Finds a number by halving the range."""

    def act(self, env: Env, observation: str) -> str:
        if "from 1 to" in observation:
            self.low, self.high = 1, 100
        elif observation == "higher":
            self.low = self.guess + 1
        else:
            self.high = self.guess - 1
        self.guess = (self.low + self.high) // 2
        return str(self.guess)


def test_an_expert_wins_and_the_rewards_are_the_servers(server: str) -> None:
    (episode,) = run_batch(
        tasks_for(ID, seeds=[3], env_kwargs={"url": f"{server}/number"}), Halving()
    )
    turns = len(episode.turns)
    assert episode.total_reward == pytest.approx(1.0 - 0.1 * (turns - 1))
    assert episode.turns[-1].info["success"] is True


def test_the_seed_and_further_parameters_reach_the_reset(server: str) -> None:
    with make(ID, url=f"{server}/number") as env:

        def number(seed: int) -> list[str]:
            env.reset(seed=seed)
            return [env.step(str(guess))[0] for guess in range(10, 100, 10) if not env.ended]

        assert number(1) == number(1)
        assert len({tuple(number(seed)) for seed in range(8)}) > 1
        assert (
            env.reset(seed=1, options={"reset": {"highest": 7}})[0] == "Guess a number from 1 to 7."
        )
        with pytest.raises(OptionError, match="must be a mapping"):
            env.reset(seed=1, options={"reset": 7})


def test_one_field_takes_the_text_and_the_schema_says_what_it_is(server: str) -> None:
    with make(ID, url=f"{server}/number") as env:
        observation, info = env.reset(seed=1)
        assert observation == "Guess a number from 1 to 100."
        assert (
            info["system"]
            == "Each of your messages is one action, the message. A number from 1 to 100"
        )
        assert env.step('{"message": "101"}')[0] == "lower"  # an action may be written out


def test_several_fields_are_written_as_json(server: str) -> None:
    with make(ID, url=f"{server}/line") as env:
        observation, info = env.reset(seed=1)
        assert observation == 'at: 0\nseen: ["a line"]'
        assert "- steps (integer): how many" in info["system"]
        for action, said in (
            ("right", "JSON object with these fields: direction, steps"),
            (
                '{"direction": "right", "steps": 0}',
                "steps: Input should be greater than or equal to 1",
            ),
            ('{"direction": "right"}', "steps: Field required"),
        ):
            observation, reward, terminated, _, info = env.step(action)
            assert (
                said in observation and reward == 0.0 and not terminated and info["action_failed"]
            )
        assert env.step('{"direction": "left", "steps": 1}')[0] == "at: -1"
        assert env.step('{"direction": "right", "steps": 4}')[:3] == ("at: 3", 1.0, True)
    with make(ID, url=f"{server}/line", action_field="direction", observation_field="at") as env:
        assert env.reset(seed=1)[0] == "0"


def test_tools_are_listed_and_called(server: str) -> None:
    with make(ID, url=f"{server}/tools") as env:
        assert "- add: Adds two numbers." in env.reset(seed=1)[1]["system"]
        assert (
            env.step('{"tool_name": "add", "arguments": {"a": 2, "b": 3}}')[0]
            == "tool_name: add\nresult: 5"
        )
        assert "tool_not_found" in env.step('{"tool_name": "multiply"}')[0]
        assert env.step("add 2 and 3")[0].startswith("An action is a call of a tool")


def test_sessions_are_apart_and_given_back(server: str) -> None:
    first, second = make(ID, url=f"{server}/line"), make(ID, url=f"{server}/line")
    first.reset(seed=1)
    second.reset(seed=1)
    first.step('{"direction": "left", "steps": 5}')
    assert second.step('{"direction": "right", "steps": 1}')[0] == "at: 1"
    third = make(ID, url=f"{server}/line")
    with pytest.raises(EnvError, match="CAPACITY_REACHED|capacity|failed"):  # the server takes two
        third.reset(seed=1)
    first.close()
    second.close()
    for _ in range(50):
        try:
            assert third.reset(seed=1)[0].startswith("at: 0")
            break
        except EnvError:
            time.sleep(0.1)
    third.close()


def test_an_environment_that_fails_there_voids_its_episode_here(server: str) -> None:
    class Crash:
        def act(self, env: Env, observation: str) -> str:
            return "crash"

    (episode,) = run_batch(
        tasks_for(ID, seeds=[3], env_kwargs={"url": f"{server}/number"}), Crash()
    )
    assert episode.failure is not None and "out of order" in episode.failure.message


def test_it_keeps_the_contract(server: str) -> None:
    env = make(ID, url=f"{server}/number")
    check_env(env, processes=False)
    env.close()


def test_a_server_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match="url="):
        make(ID)
    with pytest.raises(EnvError, match="is this an OpenEnv server"):
        make(ID, url="http://127.0.0.1:9").reset(seed=1)


def test_a_redirect_does_not_take_the_headers_elsewhere() -> None:
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")  # type: ignore[attr-defined]
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        env = make(
            ID, url=f"http://127.0.0.1:{httpd.server_port}", headers={"Authorization": "Bearer abc"}
        )
        with pytest.raises(EnvError, match="302"):
            env.reset(seed=1)
        httpd.shutdown()
    assert seen == ["Bearer abc"]
