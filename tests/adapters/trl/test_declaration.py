"""Declaration of the TRL adapter: it matches the installed TRL and the methods it overrides."""

from __future__ import annotations

import inspect

import trl

from gem_core.adapter_kit.declaration import probe
from gem_trl import ADAPTER


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == trl.__version__
    assert status.supported
    assert status.missing == ()


def test_trainer_has_the_hooks_that_the_adapter_uses() -> None:
    assert "rollout_func" in inspect.signature(trl.GRPOTrainer).parameters
    assert list(inspect.signature(trl.GRPOTrainer._generate_and_score_completions).parameters) == [
        "self",
        "inputs",
    ]
