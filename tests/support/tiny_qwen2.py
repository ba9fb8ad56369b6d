"""A tiny Qwen2 model with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

from gem_core.policies.tiny import tiny_model_path


def tiny_qwen2(tied: bool = True, **config: Any) -> Qwen2ForCausalLM:
    """Return a model for the tokenizer of the tiny model; no bias is 0, and its actions are random.

    `tied`: whether the input and output embeddings are the same.
    """
    vocabulary = AutoConfig.from_pretrained(tiny_model_path()).vocab_size
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            tie_word_embeddings=tied,
            **config,
        )
    )
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()
