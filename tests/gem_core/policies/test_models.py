"""Models by name, as recipes and evaluations take them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gem_core.errors import ConfigError
from gem_core.policies.models import load_model, model_path
from gem_core.policies.tiny import tiny_model_path


def test_a_name_becomes_what_from_pretrained_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    smollm2 = tmp_path / "cache" / "gem" / "SmolLM2-135M-Instruct"
    smollm2.mkdir(parents=True)
    (smollm2 / "config.json").write_text("{}")
    (tmp_path / "mine").mkdir()
    assert model_path("tiny") == str(tiny_model_path())
    assert model_path("smollm2") == str(smollm2)
    assert model_path("~/mine") == str(tmp_path / "mine")
    assert model_path("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_a_folder_is_loaded_in_float32_ready_to_sample_from(tmp_path: Path) -> None:
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    model, tokenizer = load_model(str(tmp_path / "model"))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert tokenizer.padding_side == "left"


def test_a_model_that_does_not_exist_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match="the model 'no/such' cannot be loaded; name a folder with a config.json"
    ):
        load_model("no/such")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(str(tmp_path))
