"""What `gem-rl adapters` reports with verl installed, and whether verl still has the hooks the adapter uses."""

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
from gem_verl.trainer import check_registered


def test_the_installed_verl_is_one_the_adapter_fits() -> None:
    status = probe(ADAPTER)
    assert status.installed == verl.__version__
    assert status.supported
    assert status.missing == ()


def test_verl_has_loaded_gem_by_its_entry_point() -> None:
    check_registered()


@pytest.mark.parametrize(
    "first", ["import gem_verl.channel", "import gem_verl.rollout", "from gem_verl import train"]
)
def test_gem_may_be_imported_before_verl(first: str) -> None:
    """While verl is imported, it loads the plugin, at a time when that module of gem is only partly loaded."""
    code = (
        f"{first}; import verl; from gem_verl.trainer import check_registered; check_registered()"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "gem could not register" not in done.stderr, done.stderr[-2000:]


def test_importing_verl_shows_why_the_plugin_failed() -> None:
    """As the message of `check_registered` promises."""
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


def test_a_plugin_that_was_not_loaded_is_reported_before_training() -> None:
    code = "import verl; from gem_verl.trainer import check_registered; check_registered()"
    env = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": "none"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert (
        "ConfigError: verl does not know gem" in done.stderr
        and "VERL_USE_EXTERNAL_MODULES=gem_verl.plugin" in done.stderr
    )


def test_a_plugin_that_fails_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """verl logs it at level DEBUG only."""

    def fails() -> None:
        raise RuntimeError("no estimators today")

    monkeypatch.setattr(gem_verl.channel, "register_estimators", fails)
    with (
        caplog.at_level(logging.ERROR, "gem_verl"),
        pytest.raises(RuntimeError, match="no estimators today"),
    ):
        importlib.reload(gem_verl.plugin)
    assert "gem could not register itself with verl" in caplog.text
    monkeypatch.undo()
    importlib.reload(gem_verl.plugin)


def test_verl_has_the_hooks() -> None:
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
