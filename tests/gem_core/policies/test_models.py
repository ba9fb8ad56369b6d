"""Models: names resolve to paths, and folders load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gem_core.errors import ConfigError
from gem_core.policies.models import load_model, model_path, save_untied
from gem_core.policies.tiny import tiny_model_path


def test_model_path_resolves_names_and_folders(
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


def test_load_model_loads_a_folder_in_float32_for_sampling(tmp_path: Path) -> None:
    shutil.copytree(tiny_model_path(), tmp_path / "model")
    model, tokenizer = load_model(str(tmp_path / "model"))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    assert tokenizer.padding_side == "left"


def test_load_model_raises_config_error_for_a_missing_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="'no/such' cannot be loaded .*; use a folder with a"):
        load_model("no/such")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(str(tmp_path))


def test_untied_copy_computes_the_same_logits(tmp_path: Path) -> None:
    tied, tokenizer = load_model("tiny")
    copy, _ = load_model(save_untied("tiny", str(tmp_path / "copy")))
    assert copy.get_output_embeddings().weight is not copy.get_input_embeddings().weight
    ids = torch.tensor([tokenizer.encode("guess 7")])
    assert torch.equal(tied(ids).logits, copy(ids).logits)
