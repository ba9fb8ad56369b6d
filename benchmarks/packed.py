"""Training passes of small Llama and Qwen2 models on packed sequences: one long row, no padding.

    trunk = PackedTrunk(model.model)
    logprobs = trunk.logprobs(model.lm_head.weight, sequences, positions)

The layers read the parameters of the transformers model, so gradients reach them. On a GPU the code
before and the code after attention are compiled, attention is torch's variable-length kernel, and
small calls run as CUDA graphs. On a CPU the same code runs uncompiled, with one attention per
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from packed_graphs import LayerGraphs
from torch.nn import functional

from gem_core.errors import ConfigError

__all__ = ["PackedTrunk", "check_model", "of_any_length"]

UNSUPPORTED = ("attention_bias", "mlp_bias", "use_sliding_window")
"""Settings of a model's config that must be off. Qwen2 always has biases in q, k and v."""


def check_model(config: Any) -> None:
    """Raise `ConfigError` for the config of a model that the engine does not support."""
    if config.model_type not in ("llama", "qwen2"):
        raise ConfigError(
            "this engine supports models of type 'llama' and 'qwen2'; "
            f"got one of type {config.model_type!r}"
        )
    settings = [name for name in UNSUPPORTED if getattr(config, name, False)]
    if config.hidden_act != "silu":
        settings.append(f"hidden_act={config.hidden_act}")
    if settings:
        raise ConfigError(
            f"this engine does not support {', '.join(settings)} of the model's config; use a "
            "Llama or Qwen2 model without them"
        )


class PackedTrunk:
    """The layers of a transformers Llama or Qwen2 model, for packed sequences."""

    def __init__(self, trunk: Any, compiled: bool = True, graph_tokens: int = 0) -> None:
        """`compiled` is for a GPU: False is slower, and computes the same bits on every start.

        Calls with at most `graph_tokens` tokens (rounded up) run as CUDA graphs, except for the
        first call of a size that no graph has room for. The backward pass of a call must come
        before the next such call in the process, and the weights may change in place only.
        """
        config = trunk.config
        check_model(config)
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.trunk = trunk
        cuda = trunk.embed_tokens.weight.is_cuda
        before, after, self.token_logprobs = (
            torch.compile(call) if cuda and compiled else call
            for call in (_before_attention, _after_attention, _token_logprobs)
        )
        attention = _varlen_attention if cuda else _attention_per_sequence
        self.weights = [weight for layer in trunk.layers for weight in _weights(layer)]
        self.weights.append(trunk.norm.weight)
        sizes = (heads, config.num_key_value_heads, width, config.rms_norm_eps)
        parts = (before, attention, after)
        self.layers = partial(_layers, parts, sizes, config.num_hidden_layers)
        self.graphs = LayerGraphs(self.layers, self.weights, graph_tokens)

    def hidden(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the hidden states after the last norm, of all tokens in order."""
        device = self.trunk.embed_tokens.weight.device
        lengths = [len(sequence) for sequence in sequences]
        tokens, longest = sum(lengths), max(lengths)
        ids = [i for sequence in sequences for i in sequence]
        graphed = self.graphs.fits(tokens)
        if graphed:
            lengths, longest = self.graphs.padded(lengths)
            ids += [0] * (sum(lengths) - tokens)
        ids_N = torch.tensor(ids, device=device)
        place_N = torch.tensor([i for length in lengths for i in range(length)], device=device)
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        x_N_E = functional.embedding(ids_N, self.trunk.embed_tokens.weight)
        rotary = self.trunk.rotary_emb(x_N_E[None], place_N[None])
        cos, sin = (t[0, :, None].clone() for t in rotary)  # torch.compile compiles again for views
        if graphed:
            return self.graphs(x_N_E, cos, sin, bounds, longest)[:tokens]
        return self.layers(self.weights, x_N_E, cos, sin, bounds, longest)

    def at(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Return the hidden states at these positions of each sequence, flat."""
        starts = [0, *accumulate(len(sequence) for sequence in sequences)]
        chosen = [start + p for start, own in zip(starts, positions) for p in own]
        hidden_N_E = self.hidden(sequences)
        return hidden_N_E[torch.tensor(chosen, dtype=torch.long, device=hidden_N_E.device)]

    def logprobs(
        self,
        head: torch.Tensor,
        sequences: Sequence[Sequence[int]],
        positions: Sequence[Sequence[int]],
    ) -> torch.Tensor:
        """Return log pi of the tokens at these positions (each at least 1), flat.

        `head` is the weight of the language model head.
        """
        before = [[p - 1 for p in own] for own in positions]
        hidden_M_E = self.at(sequences, before)
        targets = [sequence[p] for sequence, own in zip(sequences, positions) for p in own]
        target_M = torch.tensor(targets, dtype=torch.long, device=hidden_M_E.device)
        of_any_length(hidden_M_E, target_M)
        logprobs: torch.Tensor = self.token_logprobs(hidden_M_E, head, target_M)
        return logprobs


def of_any_length(*tensors: torch.Tensor) -> None:
    """Let torch.compile compile for any size of the first dimension; the others stay fixed.

    Its option `dynamic=True` also compiles for any width and number of heads: slower kernels.
    """
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _layers(
    parts: Any,
    sizes: Any,
    count: int,
    weights: Sequence[torch.Tensor],
    x_N_E: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
) -> torch.Tensor:
    """Return the hidden states after the layers and the last norm.

    `parts` are the functions before attention, for attention, and after it. `weights` are those of
    all layers, in the order of `_weights`, and that of the last norm.
    """
    before, attention, after = parts
    *of_layers, norm = weights
    step = len(of_layers) // count
    for i in range(0, len(of_layers), step):
        own = of_layers[i : i + step]
        of_any_length(x_N_E, cos, sin)
        queries, keys, values = before(x_N_E, cos, sin, sizes, *own[:-5])
        mixed = attention(queries, keys, values, bounds, longest)
        of_any_length(mixed)
        x_N_E = after(x_N_E, mixed, sizes, *own[-5:])
    return functional.rms_norm(x_N_E, norm.shape, norm, sizes[-1])


def _weights(layer: Any) -> list[torch.Tensor]:
    """Return the weights of a layer in the order of `_before_attention` and `_after_attention`.

    The biases of Qwen2 follow its projections.
    """
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [p.bias for p in projections if p.bias is not None]
    return [
        layer.input_layernorm.weight,
        *(p.weight for p in projections),
        *biases,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
    ]


def _before_attention(
    x_N_E: Any, cos: Any, sin: Any, sizes: Any, norm: Any, q: Any, k: Any, v: Any, *biases: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rotated queries and keys, and values, each (tokens, heads, width)."""
    heads, kv_heads, width, epsilon = sizes
    h_N_E = functional.rms_norm(x_N_E, norm.shape, norm, epsilon)
    q_bias, k_bias, v_bias = biases or (None, None, None)
    queries = functional.linear(h_N_E, q, q_bias).view(-1, heads, width)
    keys = functional.linear(h_N_E, k, k_bias).view(-1, kv_heads, width)
    values = functional.linear(h_N_E, v, v_bias).view(-1, kv_heads, width)
    return _rotated(queries, cos, sin), _rotated(keys, cos, sin), values


def _rotated(x_N_H_D: Any, cos: Any, sin: Any) -> torch.Tensor:
    first, second = x_N_H_D.chunk(2, -1)
    return x_N_H_D * cos + torch.cat([-second, first], -1) * sin


def _after_attention(
    x_N_E: Any, mixed: Any, sizes: Any, out: Any, norm: Any, gate: Any, up: Any, down: Any
) -> torch.Tensor:
    """Return the residual stream after the layer's output projection and MLP."""
    x_N_E = x_N_E + functional.linear(mixed.reshape(x_N_E.shape[0], -1), out)
    h_N_E = functional.rms_norm(x_N_E, norm.shape, norm, sizes[-1])
    gated = functional.silu(functional.linear(h_N_E, gate)) * functional.linear(h_N_E, up)
    return x_N_E + functional.linear(gated, down)


def _token_logprobs(hidden_M_E: Any, head: Any, target_M: Any) -> torch.Tensor:
    logits_M_V = functional.linear(hidden_M_E, head).float()
    return logits_M_V.gather(1, target_M[:, None])[:, 0] - logits_M_V.logsumexp(-1)


def _varlen_attention(q: Any, k: Any, v: Any, bounds: Any, longest: int) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    accepted = signature(varlen_attn).parameters
    # torch 2.10 has is_causal instead of a window
    causal = {"window_size": (-1, 0)} if "window_size" in accepted else {"is_causal": True}
    if "enable_gqa" in accepted:
        causal["enable_gqa"] = True
    else:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    mixed: torch.Tensor = varlen_attn(q, k, v, bounds, bounds, longest, longest, **causal)
    return mixed


def _attention_per_sequence(q: Any, k: Any, v: Any, bounds: Any, longest: int) -> torch.Tensor:
    parts = []
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        if start == end:
            continue
        part = [t[start:end].transpose(0, 1)[None] for t in (q, k, v)]
        mixed = functional.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)
        parts.append(mixed[0].transpose(0, 1))
    return torch.cat(parts)
