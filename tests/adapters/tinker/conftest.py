"""Fixtures of the Tinker tests: the local server with the tiny model, settings of short runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TINKER_TELEMETRY"] = "0"

import torch
from worlds import ECHO, registered

from gem_tinker import GemConfig, TinkerSettings
from gem_tinker.local_server import LocalServer


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the connections that Tinker's client leaves to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed:ResourceWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Ignore them, too, when pytest collects garbage after the last test."""
    warnings.filterwarnings("ignore", "unclosed", ResourceWarning)


@pytest.fixture(scope="session", autouse=True)
def environments_for_tests() -> Iterator[None]:
    """Register the test environments for this session only."""
    torch.set_num_threads(1)
    with registered():
        yield


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set a key; no file of the user's home may provide another."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with the tiny model that keeps the data it receives."""
    with LocalServer("tiny", tmp_path_factory.mktemp("server"), inspected=True) as server:
        yield server


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., GemConfig]:
    """Return `make_config(env_id, **fields)`: a config that records episodes and metrics."""

    def make(env_id: str = ECHO, **fields: Any) -> GemConfig:
        files = {
            "record": str(tmp_path / "episodes.jsonl"),
            "metrics": str(tmp_path / "metrics.jsonl"),
        }
        return GemConfig(env_id, **{"seeds": 12, "max_turn_tokens": 6, **files, **fields})

    return make


@pytest.fixture
def make_settings(server: LocalServer, tmp_path: Path) -> Callable[..., TinkerSettings]:
    """Return `make_settings(**fields)`: settings of a run of two updates on the local server."""

    def make(**fields: Any) -> TinkerSettings:
        given = {
            "model": "tiny",
            "out": str(tmp_path / "run"),
            "updates": 2,
            "batch_size": 4,
            "rank": 4,
            "learning_rate": 1e-3,
            "base_url": server.url,
        }
        return TinkerSettings(**{**given, **fields})

    return make
