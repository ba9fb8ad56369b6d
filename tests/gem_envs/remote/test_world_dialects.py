"""AgentGym's dialects for its other servers: what its own clients send and read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gem_core.env.registry import make
from gem_core.errors import EnvError
from gem_envs.remote.agentgym import AgentGym
from gem_envs.remote.protocols import dialect
from gem_envs.remote.server import Server

WORLDS = {
    "alfworld": "household:HeatAndPlace-v0",
    "maze": "maze:DoubleT-v0",
    "sqlgym": "sql:OneShot-v0",
    "tool": "tool:Todo-v0",
    "wordle": "game:Wordle-v0-easy",
}
EXCHANGES: dict[str, tuple[Any, dict[str, Any], type, set[str]]] = {
    # body of /create, body of /reset, type of the reply to /reset, keys of the reply to /step
    "alfworld": (None, {"game": 3, "world_type": "Text"}, dict, {"available_actions"}),
    "maze": (None, {"game": 3}, dict, set()),
    "wordle": (None, {"seed": 3}, dict, set()),
    "tool": ({"id": 0}, {"id": 3}, str, set()),
    "sqlgym": (None, {"item_id": 3}, list, {"state", "info"}),
    "webshop": (None, {"session_id": 3}, list, {"state", "info"}),
}


@pytest.mark.parametrize(("name", "id"), WORLDS.items())
def test_expert_solves_a_served_world(name: str, id: str) -> None:
    local: Any = make(id).unwrapped
    first, _ = local.reset(seed=3)
    with (
        Server(lambda: make(id).unwrapped, dialect=name) as server,
        AgentGym(server.url, name) as env,
    ):
        assert env.reset(seed=3)[0] == first
        total = 0.0
        for action in local.expert():
            expected = local.step(action)
            observation, reward, terminated, _, info = env.step(action)
            assert observation == expected[0]
            total += reward
            if terminated:
                break
        assert terminated and info["success"]
        assert total == pytest.approx(1.0)


@pytest.mark.parametrize("name", EXCHANGES)
def test_server_answers_what_agentgyms_client_reads(name: str) -> None:
    create, reset, kind, keys = EXCHANGES[name]
    session = dialect(name).session
    with Server(lambda: make("maze:DoubleT-v0").unwrapped, dialect=name) as server:
        reply = httpx.post(f"{server.url}/create", json=create).json()
        number = reply if isinstance(reply, int) else reply["id"]
        reply = httpx.post(f"{server.url}/reset", json={session: number, **reset}).json()
        assert isinstance(reply, kind)
        first = httpx.get(f"{server.url}/observation", params={session: number}).json()
        assert "maze" in first
        body = {session: number, "action": "move up"}
        reply = httpx.post(f"{server.url}/step", json=body).json()
        assert keys | {"reward", "done"} <= set(reply)
        assert ("state" in reply) != ("observation" in reply)
        assert (reply["reward"], reply["done"]) == (0.0, False)


def test_wordle_server_lists_its_words() -> None:
    with Server(lambda: make("game:Wordle-v0-easy"), dialect="wordle") as server:
        number = httpx.post(f"{server.url}/create").json()["id"]
        words = httpx.get(f"{server.url}/filtered_vocab", params={"id": number}).json()
        assert len(words) > 100 and make("game:Wordle-v0-easy").unwrapped.vocabulary == words
    with Server(lambda: make("maze:DoubleT-v0"), dialect="wordle") as server:
        number = httpx.post(f"{server.url}/create").json()["id"]
        reply = httpx.get(f"{server.url}/filtered_vocab", params={"id": number})
        assert reply.status_code == 404 and reply.json() == {"error": "Maze has no vocabulary"}
    with Server(lambda: make("maze:DoubleT-v0"), dialect="maze") as server:
        assert httpx.get(f"{server.url}/filtered_vocab").status_code == 404


@pytest.mark.parametrize("reply", ["text", None, [], {"id": 1}])
def test_odd_reply_to_a_reset_names_the_dialect(reply: Any) -> None:
    with pytest.raises(EnvError, match="'webshop'"):
        dialect("webshop").parse_reset(reply)
    with pytest.raises(EnvError, match="'sqlgym'"):
        dialect("sqlgym").parse_create(reply)
