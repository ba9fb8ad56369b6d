"""Tests of the OpenEnv client, against servers made with the real `openenv` package."""

from __future__ import annotations

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
from gem_core.adapter_kit.ports import free_port
from gem_core.errors import ConfigError, EnvError, OptionError

ID = "openenv:Server-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    port = free_port()
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
    """A player that finds the number by bisection."""

    def act(self, env: Env, observation: str) -> str:
        if "from 1 to" in observation:
            self.low, self.high = 1, 100
        elif observation == "higher":
            self.low = self.guess + 1
        else:
            self.high = self.guess - 1
        self.guess = (self.low + self.high) // 2
        return str(self.guess)


def test_expert_wins_with_the_servers_rewards(server: str) -> None:
    (episode,) = run_batch(
        tasks_for(ID, seeds=[3], env_kwargs={"url": f"{server}/number"}), Halving()
    )
    turns = len(episode.turns)
    assert episode.total_reward == pytest.approx(1.0 - 0.1 * (turns - 1))
    assert episode.turns[-1].info["success"] is True


def test_seed_and_reset_option_reach_the_server(server: str) -> None:
    with make(ID, url=f"{server}/number") as env:

        def hints(seed: int) -> list[str]:
            env.reset(seed=seed)
            return [env.step(str(guess))[0] for guess in range(10, 100, 10) if not env.ended]

        assert hints(1) == hints(1)
        assert len({tuple(hints(seed)) for seed in range(8)}) > 1
        observation, _ = env.reset(seed=1, options={"reset": {"highest": 7}})
        assert observation == "Guess a number from 1 to 7."
        with pytest.raises(OptionError, match="must be a mapping"):
            env.reset(seed=1, options={"reset": 7})


def test_single_field_takes_the_text_and_the_schema_describes_it(server: str) -> None:
    with make(ID, url=f"{server}/number") as env:
        observation, info = env.reset(seed=1)
        assert observation == "Guess a number from 1 to 100."
        system = "Each of your messages is one action, the message. A number from 1 to 100"
        assert info["system"] == system
        assert env.step('{"message": "101"}')[0] == "lower"  # a JSON object works as well


def test_several_fields_need_a_json_action(server: str) -> None:
    with make(ID, url=f"{server}/line") as env:
        observation, info = env.reset(seed=1)
        assert observation == 'at: 0\nseen: ["a line"]'
        assert "- steps (integer): how many" in info["system"]
        for action, reason in (
            ("right", "JSON object with these fields: direction, steps"),
            (
                '{"direction": "right", "steps": 0}',
                "steps: Input should be greater than or equal to 1",
            ),
            ('{"direction": "right"}', "steps: Field required"),
        ):
            observation, reward, terminated, _, info = env.step(action)
            assert reason in observation
            assert (reward, terminated, info["action_failed"]) == (0.0, False, True)
        assert env.step('{"direction": "left", "steps": 1}')[0] == "at: -1"
        assert env.step('{"direction": "right", "steps": 4}')[:3] == ("at: 3", 1.0, True)
    with make(ID, url=f"{server}/line", action_field="direction", observation_field="at") as env:
        assert env.reset(seed=1)[0] == "0"


def test_tools_are_listed_and_called(server: str) -> None:
    with make(ID, url=f"{server}/tools") as env:
        assert "- add: Adds two numbers." in env.reset(seed=1)[1]["system"]
        observation = env.step('{"tool_name": "add", "arguments": {"a": 2, "b": 3}}')[0]
        assert observation == "tool_name: add\nresult: 5"
        assert "tool_not_found" in env.step('{"tool_name": "multiply"}')[0]
        assert env.step("add 2 and 3")[0].startswith("An action is a call of a tool")


def test_sessions_are_separate_and_close_frees_them(server: str) -> None:
    first, second = make(ID, url=f"{server}/line"), make(ID, url=f"{server}/line")
    first.reset(seed=1)
    second.reset(seed=1)
    first.step('{"direction": "left", "steps": 5}')
    assert second.step('{"direction": "right", "steps": 1}')[0] == "at: 1"
    third = make(ID, url=f"{server}/line")
    with pytest.raises(EnvError, match="CAPACITY_REACHED|capacity|failed"):  # two at most
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


def test_interrupted_step_closes_the_connection(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next step would receive the reply to the interrupted one."""

    def interrupted(timeout: float) -> str:
        raise KeyboardInterrupt

    with make(ID, url=f"{server}/number") as env:
        env.reset(seed=1)
        monkeypatch.setattr(env.unwrapped._connection, "recv", interrupted)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            env.step("101")
        with pytest.raises(EnvError, match="call reset"):
            env.step("0")
        env.reset(seed=1)
        assert env.step("101")[0] == "lower"


def test_server_error_fails_the_episode(server: str) -> None:
    class Crash:
        def act(self, env: Env, observation: str) -> str:
            return "crash"

    (episode,) = run_batch(
        tasks_for(ID, seeds=[3], env_kwargs={"url": f"{server}/number"}), Crash()
    )
    assert episode.failure is not None and "out of order" in episode.failure.message


def test_check_env_passes(server: str) -> None:
    env = make(ID, url=f"{server}/number")
    check_env(env, processes=False)
    env.close()


def test_connect_rejects_a_non_server() -> None:
    with pytest.raises(ConfigError, match="url="):
        make(ID)
    with pytest.raises(EnvError, match="is this an OpenEnv server"):
        make(ID, url="http://127.0.0.1:9").reset(seed=1)


def test_password_of_the_url_is_sent_and_not_shown() -> None:
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Authorization"))
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        with pytest.raises(EnvError, match="404") as error:
            make(ID, url=f"http://gem:S3CRET@127.0.0.1:{httpd.server_port}").reset(seed=1)
        httpd.shutdown()
    assert "S3CRET" not in str(error.value)
    assert received == ["Basic Z2VtOlMzQ1JFVA=="]


def test_redirect_is_not_followed_with_the_headers() -> None:
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers.get("Authorization"))
            port = self.connection.getsockname()[1]
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{port}/elsewhere")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{httpd.server_port}"
        env = make(ID, url=url, headers={"Authorization": "Bearer abc"})
        with pytest.raises(EnvError, match="302"):
            env.reset(seed=1)
        httpd.shutdown()
    assert received == ["Bearer abc"]
