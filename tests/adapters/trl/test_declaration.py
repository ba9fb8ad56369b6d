"""The declaration of the adapter against the installed TRL, and the methods of TRL it relies on."""

from __future__ import annotations

import inspect

import trl

from gem_core.adapter_kit.declaration import probe
from gem_trl import ADAPTER


def test_the_adapter_supports_the_installed_trl() -> None:
    status = probe(ADAPTER)
    assert status.installed == trl.__version__
    assert status.supported
    assert status.missing == ()


def test_the_trainer_takes_a_rollout_function_and_has_the_method_that_scores() -> None:
    assert "rollout_func" in inspect.signature(trl.GRPOTrainer).parameters
    assert list(inspect.signature(trl.GRPOTrainer._generate_and_score_completions).parameters) == [
        "self",
        "inputs",
    ]
