"""Weight sync: a colocated vLLM gets the weights that TRL gives it, in one call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from gem_core.policies import load_tiny
from gem_trl.trainer import load_weights


class Weights:
    """The model of a vLLM engine: keeps what each call loads."""

    def __init__(self) -> None:
        self.calls: list[dict[str, torch.Tensor]] = []

    def load_weights(self, weights: Any) -> None:
        self.calls.append({name: tensor.clone() for name, tensor in weights})

    def loaded(self) -> dict[str, torch.Tensor]:
        return {name: tensor for call in self.calls for name, tensor in call.items()}


@pytest.fixture
def generation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """TRL's generation without an engine: vLLM needs a GPU."""
    monkeypatch.setattr(VLLMGeneration, "_init_vllm", lambda self: None)
    model, tokenizer = load_tiny()
    generation = VLLMGeneration(model, Accelerator(cpu=True), tokenizer)
    runner = SimpleNamespace(model_runner=SimpleNamespace(model=Weights()))
    engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))
    generation.llm = SimpleNamespace(llm_engine=engine, resets=0)
    generation.llm.reset_prefix_cache = lambda: setattr(generation.llm, "resets", 1)
    return generation


def weights_of(generation: Any) -> Weights:
    """Return the model of the engine, and forget what it has loaded."""
    worker = generation.llm.llm_engine.model_executor.driver_worker
    worker.model_runner.model = weights = Weights()
    return weights


def test_one_call_loads_what_trl_loads(generation: Any) -> None:
    weights = weights_of(generation)
    generation.sync_weights()
    expected, calls = weights.loaded(), len(weights.calls)
    assert calls == len(expected) == len(list(generation.model.named_parameters()))
    generation.llm.resets = 0

    weights = weights_of(generation)
    load_weights(generation, sharded=False)
    assert generation.llm.resets == 1, "cached prefixes belong to the old weights"
    if hasattr(VLLMGeneration, "_iter_named_params"):  # not in the oldest TRL
        assert len(weights.calls) == 1
    assert list(weights.loaded()) == list(expected)
    for name, tensor in weights.loaded().items():
        assert torch.equal(tensor, expected[name]), name


def test_gathered_and_merged_weights_are_loaded_one_by_one(generation: Any) -> None:
    weights = weights_of(generation)
    load_weights(generation, sharded=True)
    assert len(weights.calls) > 1

    adapted = get_peft_model(generation.model, LoraConfig(target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    generation.model = adapted
    weights = weights_of(generation)
    load_weights(generation, sharded=False)
    assert len(weights.calls) > 1
    name = "model.layers.0.self_attn.q_proj.weight"
    plain = adapted.get_base_model().state_dict()[name.replace("q_proj", "q_proj.base_layer")]
    assert not torch.equal(weights.loaded()[name], plain), "the adapter is merged"


def test_a_server_gets_the_weights_as_trl_sends_them(generation: Any) -> None:
    sent = []
    generation.mode, generation.sync_weights = "server", lambda: sent.append(True)
    load_weights(generation, sharded=False)
    assert sent == [True]
