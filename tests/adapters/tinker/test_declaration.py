"""Declaration of the Tinker adapter: it matches the installed client."""

from __future__ import annotations

import inspect

import tinker

from gem_core.adapter_kit.declaration import probe
from gem_tinker import ADAPTER


def test_declaration_matches_the_installed_version() -> None:
    status = probe(ADAPTER)
    assert status.installed == tinker.__version__
    assert status.supported
    assert status.missing == ()


def test_clients_have_the_arguments_that_the_adapter_passes() -> None:
    create = inspect.signature(tinker.ServiceClient.create_lora_training_client)
    assert list(create.parameters)[1:4] == ["base_model", "rank", "seed"]
    loss = inspect.signature(tinker.TrainingClient.forward_backward)
    assert list(loss.parameters)[1:] == ["data", "loss_fn", "loss_fn_config"]
    sample = inspect.signature(tinker.SamplingClient.sample_async)
    assert list(sample.parameters)[1:4] == ["prompt", "num_samples", "sampling_params"]
