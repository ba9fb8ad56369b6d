"""A tiny Qwen2 model with random weights, also as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
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


def write_gguf(model: Qwen2ForCausalLM, path: Path) -> None:
    """Write a Qwen2 model with the tokenizer of the tiny model as a GGUF file."""
    import gguf

    config = model.config
    source = json.loads((Path(tiny_model_path()) / "tokenizer.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e6)
    vocabulary = source["model"]["vocab"]
    special = {token["content"]: token["id"] for token in source["added_tokens"]}
    tokens = sorted({**vocabulary, **special}.items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([3 if token in special else 1 for token, _ in tokens])
    writer.add_token_merges([" ".join(pair) for pair in source["model"]["merges"]])
    writer.add_eos_token_id(special["<|im_end|>"])
    writer.add_pad_token_id(special["<|pad|>"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(mapped, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
