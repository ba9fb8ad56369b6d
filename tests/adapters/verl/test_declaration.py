"""The adapter's declaration and registration, and the verl hooks it uses, with verl installed."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import subprocess
import sys

import pytest
import verl

import gem_verl.channel
import gem_verl.plugin
from gem_core.adapter_kit.declaration import probe
from gem_verl import ADAPTER

CHECK = "from gem_verl.trainer import check_registered; check_registered()"


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == verl.__version__
    assert status.supported
    assert status.missing == ()


@pytest.mark.parametrize(
    "first",
    [
        "import verl",
        pytest.param("import gem_verl.channel", marks=pytest.mark.long),
        pytest.param("import gem_verl.rollout", marks=pytest.mark.long),
        "from gem_verl import train",
    ],
)
def test_verl_loads_the_plugin_in_any_import_order(first: str) -> None:
    """verl loads the plugin while it is imported, so the first gem module is only partly loaded."""
    command = [sys.executable, "-W", "ignore", "-c", f"{first}; import verl; {CHECK}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "gem could not register" not in done.stderr, done.stderr[-2000:]


def test_import_of_verl_shows_why_the_plugin_failed() -> None:
    """The error of `check_registered` refers to this output."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        "import sys; sys.modules['gem_core.training.metrics'] = None; import verl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "gem could not register itself with verl" in done.stderr
    assert "import of gem_core.training.metrics halted" in done.stderr


def test_check_registered_rejects_a_plugin_that_is_not_loaded() -> None:
    env = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": "none"}
    command = [sys.executable, "-W", "ignore", "-c", f"import verl; {CHECK}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "ConfigError: verl does not know gem" in done.stderr
    assert "VERL_USE_EXTERNAL_MODULES=gem_verl.plugin" in done.stderr


def test_plugin_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """verl itself logs it at level DEBUG only."""

    def fails() -> None:
        raise RuntimeError("no estimators")

    monkeypatch.setattr(gem_verl.channel, "register_estimators", fails)
    with (
        caplog.at_level(logging.ERROR, "gem_verl"),
        pytest.raises(RuntimeError, match="no estimators"),
    ):
        importlib.reload(gem_verl.plugin)
    assert "gem could not register itself with verl" in caplog.text
    monkeypatch.undo()
    importlib.reload(gem_verl.plugin)


def test_overridden_methods_exist_with_the_same_parameters() -> None:
    from verl.experimental.agent_loop.agent_loop import (
        AgentLoopBase,
        AgentLoopOutput,
        AgentLoopWorker,
    )
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    assert {"sampling_params", "kwargs"} <= set(inspect.signature(AgentLoopBase.run).parameters)
    assert "rm_scores" in inspect.getsource(AgentLoopOutput.as_dict)
    assert "rm_scores" in inspect.getsource(AgentLoopWorker._postprocess)
    for name in ("_compute_advantage", "_update_actor"):
        assert list(inspect.signature(getattr(PPOTrainer, name)).parameters) == [
            "self",
            "batch",
            "metrics",
        ]
