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
from gem_trl.rollout import load_weights_at_once


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
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=Weights()))
    engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
    generation.llm = SimpleNamespace(llm_engine=engine, resets=0)
    generation.llm.reset_prefix_cache = lambda: setattr(generation.llm, "resets", 1)
    return generation


def synced(generation: Any) -> Weights:
    """Let TRL sync the weights; return what the engine loaded."""
    worker = generation.llm.llm_engine.model_executor.driver_worker
    worker.model_runner.model = weights = Weights()
    generation.llm.resets = 0
    generation.sync_weights()
    assert generation.llm.resets == 1, "cached prefixes belong to the old weights"
    return weights


def test_one_call_loads_what_trl_loads(generation: Any) -> None:
    expected = synced(generation)
    assert len(expected.calls) == len(list(generation.model.named_parameters()))
    trainer = SimpleNamespace(vllm_generation=generation)
    for _ in range(2):  # also if the trainer is prepared again
        load_weights_at_once(trainer)
        with torch.no_grad():
            next(generation.model.parameters()).add_(1.0)
        weights = synced(generation)
        if hasattr(VLLMGeneration, "_iter_named_params"):  # not in the oldest TRL
            assert len(weights.calls) == 1
        assert list(weights.loaded()) == list(expected.loaded())
        for name, parameter in generation.model.named_parameters():
            assert torch.equal(weights.loaded()[name], parameter), name


def test_an_engine_with_another_layout_is_left_to_trl(generation: Any) -> None:
    load_weights_at_once(SimpleNamespace(vllm_generation=generation))
    if hasattr(VLLMGeneration, "_iter_named_params"):
        del generation.llm.llm_engine.model_executor
        names = [name for name, _ in generation._iter_named_params()]
        assert names == [name for name, _ in generation.model.named_parameters()]


@pytest.mark.parametrize("sharded", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_weights_are_loaded_one_by_one(generation: Any, sharded: str) -> None:
    load_weights_at_once(SimpleNamespace(vllm_generation=generation, **{sharded: True}))
    assert len(synced(generation).calls) > 1


def test_merged_weights_are_loaded_one_by_one(generation: Any) -> None:
    adapted = get_peft_model(generation.model, LoraConfig(target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    generation.model = adapted
    load_weights_at_once(SimpleNamespace(vllm_generation=generation))
    weights = synced(generation)
    assert len(weights.calls) > 1
    name = "model.layers.0.self_attn.q_proj.weight"
    plain = adapted.get_base_model().state_dict()[name.replace("q_proj", "q_proj.base_layer")]
    assert not torch.equal(weights.loaded()[name], plain), "the adapter is merged"


def test_a_server_gets_the_weights_as_trl_sends_them(generation: Any) -> None:
    generation.mode = "server"
    load_weights_at_once(SimpleNamespace(vllm_generation=generation))
    assert "_iter_named_params" not in vars(generation)
