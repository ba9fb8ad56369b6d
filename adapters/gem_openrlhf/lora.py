"""LoRA: the weights of a model with an adapter, as vLLM loads them.

OpenRLHF 0.11 sends a LoRA model to vLLM under PEFT's names, which vLLM does not know, so the first
sync fails. gem sends the base model's names with the adapter added to the weights. The sums are
copies: adding and subtracting in place would change the base weights by rounding errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

__all__ = ["has_lora", "merged_actor", "merged_weights"]

_PREFIX = "base_model.model."


def has_lora(model: Any) -> bool:
    """Return whether PEFT wraps the model."""
    from peft import PeftModel

    return isinstance(model, PeftModel)


def merged_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, weight) of the base model, each weight with its adapter added."""
    import torch
    from peft.tuners.lora import LoraLayer

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, kind = name.rpartition(".base_layer.")
        weight = parameter.data
        if owner in layers and kind == "weight":
            layer = layers[owner]
            with torch.no_grad():
                for adapter in layer.active_adapters:
                    weight = weight + layer.get_delta_weight(adapter).to(weight.dtype)
        yield name.removeprefix(_PREFIX).replace(".base_layer.", "."), weight


def merged_actor(model: Any) -> Any:
    """Return an object that OpenRLHF's weight sync reads as its actor, with the merged weights."""
    module = SimpleNamespace(
        named_parameters=lambda: merged_weights(model),
        state_dict=lambda: dict(merged_weights(model)),
    )
    return SimpleNamespace(model=SimpleNamespace(module=module), is_vlm=False)
