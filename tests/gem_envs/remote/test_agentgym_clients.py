"""AgentGym's own clients against `gem-rl serve`, with a checkout of AgentGym.

GEM_AGENTGYM=path/of/AgentGym tox -e scenarios -- tests/gem_envs/remote/test_agentgym_clients.py

The clients need the packages requests and openai.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gem_core.env.registry import make
from gem_envs.remote.server import Server

CHECKOUT = os.environ.get("GEM_AGENTGYM", "")
pytestmark = pytest.mark.skipif(
    not CHECKOUT,
    reason="needs a checkout that no index carries: AgentGym's, named by GEM_AGENTGYM",
)
SEED = 3
REACT = "Thought:\nI try this.\n\nAction:\n{}"
CLIENTS = (
    # module, class, dialect, id, the form of an action
    ("alfworld", "AlfWorldEnvClient", "alfworld", "household:HeatAndPlace-v0", REACT),
    ("lmrlgym", "MazeEnvClient", "maze", "maze:DoubleT-v0", REACT),
    ("lmrlgym", "WordleEnvClient", "wordle", "game:Wordle-v0-easy", REACT),
    ("sqlgym", "SqlGymEnvClient", "sqlgym", "sql:OneShot-v0", "```sql\n{}\n```"),
    ("webshop", "WebshopEnvClient", "webshop", "webshop:WebShop-v0", REACT),
    ("academia", "AcademiaEnvClient", "tool", "tool:Academia-v0", "Thought: x\n\nAction: {}"),
    ("movie", "MovieEnvClient", "tool", "tool:Movie-v0", "Thought: x\n\nAction: {}"),
    ("sheet", "SheetEnvClient", "tool", "tool:Sheet-v0", "Thought: x\n\nAction: {}"),
    ("todo", "TodoEnvClient", "tool", "tool:Todo-v0", "Thought: x\n\nAction: {}"),
    ("weather", "WeatherEnvClient", "tool", "tool:Weather-v0", "Thought: x\n\nAction: {}"),
    ("searchqa", "SearchQAEnvClient", "searchqa", "search:DeepSearch-v0", "{}"),
    ("sciworld", "SciworldEnvClient", "sciworld", "sciworld:find-plant", REACT),
    ("textcraft", "TextCraftEnvClient", "textcraft", "textcraft:TextCraft-v0-depth2", REACT),
    ("webarena", "WebarenaEnvClient", "webarena", "web:Shop-v0", "I try ```{}```"),
)


@pytest.fixture(autouse=True)
def agentgym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make AgentGym's package `agentenv` importable."""
    monkeypatch.syspath_prepend(str(Path(CHECKOUT) / "agentenv"))


def client_of(module: str, name: str, url: str) -> Any:
    return getattr(importlib.import_module(f"agentenv.envs.{module}"), name)(url, data_len=200)


def expert_actions(env: Any) -> Iterator[str]:
    """Yield the expert's actions while it plays a copy of the served environment."""
    env.reset(seed=SEED)
    for action in env.expert():
        yield action
        env.step(action)


@pytest.mark.parametrize(("module", "name", "dialect", "id", "form"), CLIENTS)
def test_client_solves_a_task_with_the_experts_actions(
    module: str, name: str, dialect: str, id: str, form: str
) -> None:
    local: Any = make(id).unwrapped
    bare = dialect == "wordle"  # gem-rl serve --bare: the client sends the word alone
    with Server(lambda: make(id).unwrapped if bare else make(id), dialect=dialect) as server:
        client = client_of(module, name, server.url)
        client.reset(SEED)
        assert isinstance(client.observe(), str) and client.observe()
        for action in expert_actions(local):
            result = client.step(form.format(action))
            if result.done:
                break
        assert result.done
        assert result.reward == pytest.approx(100.0 if dialect == "sciworld" else 1.0)
    local.close()


def test_babyai_client_sees_what_the_environment_shows() -> None:
    local: Any = make("babyai:GoToRedBall-v0").unwrapped
    first, _ = local.reset(seed=SEED)
    with Server(lambda: make("babyai:GoToRedBall-v0").unwrapped, dialect="babyai") as server:
        client = client_of("babyai", "BabyAIEnvClient", server.url)
        client.reset(SEED)
        assert client.observe() == first
        for _ in range(5):
            action = local.sample_action()
            observation, _, terminated, _, _ = local.step(action)
            result = client.step(REACT.format(action))
            assert (result.state, result.done) == (observation, terminated)
            if terminated:
                break
    assert "agentenv" in sys.modules
