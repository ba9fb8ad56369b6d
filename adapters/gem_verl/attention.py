"""Attention: `torch_varlen`, attention over packed sequences with the kernel that torch ships.

    +actor_rollout_ref.model.override_config.attn_implementation=torch_varlen

verl packs the sequences of a micro-batch into one row (`use_remove_padding=True`). For such a row,
the `sdpa` of transformers computes a mask of tokens x tokens. flash-attn needs none, but has to be
compiled. torch 2.10 and newer have a kernel that needs neither, for float16 and bfloat16 on a GPU.
On other devices and in float32, each sequence is one call of scaled_dot_product_attention.

`sdpa` computes all other input: padded sequences, a key-value cache, sliding windows.
"""

from __future__ import annotations

from importlib.util import find_spec
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gem_core.errors import ConfigError

__all__ = ["NAME", "missing_kernel", "register_attention"]

NAME = "torch_varlen"
"""The name in transformers' registries."""
_ALTERNATIVES = "set attn_implementation=sdpa, or flash_attention_2 with flash-attn installed"
_UNSUPPORTED = ("softcap", "s_aux")
"""Arguments of an attention that change its scores: Gemma 2's, gpt-oss's."""


def register_attention() -> None:
    """Register the attention and its mask with transformers; a second call changes nothing."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)


def missing_kernel() -> str:
    """Return why this torch cannot run the attention on a GPU, with the remedy; "" if it can."""
    if find_spec("torch.nn.attention.varlen") is not None:
        return ""
    return (
        f"attn_implementation={NAME} needs torch 2.10 or newer on a GPU; got {torch.__version__}. "
        f"Install a newer one, or {_ALTERNATIVES}"
    )


def _mask(config: Any, q_length: int, kv_length: int, **kwargs: Any) -> torch.Tensor | None:
    """Return None for packed sequences, otherwise the mask of `sdpa`.

    transformers calls it once per kind of layer in a forward pass. It, too, looks for packed
    sequences only if there is no attention mask.
    """
    # verl sets its override as an attribute of the config; a checkpoint would contain it, and would
    # load only with gem
    vars(config).pop("attn_implementation", None)
    padded = kwargs.get("attention_mask") is not None
    other = kwargs.get("local_size") is not None or kwargs.get("use_vmap", False)
    if not padded and not other and q_length == kv_length:
        return None
    if padded:  # without this, `sdpa` may return None
        kwargs["allow_is_causal_skip"] = False
    sdpa_mask = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    mask: torch.Tensor | None = sdpa_mask(
        config=config, q_length=q_length, kv_length=kv_length, **kwargs
    )
    return mask


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention; query, key and value are (batch, heads, length, width)."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None or not causal or query.shape[2] != key.shape[2]:
        sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        kwargs |= {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        mixed, _ = sdpa(module, query, key, value, attention_mask, **kwargs)
        return mixed, None
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if unsupported or dropout:
        names = ", ".join(unsupported or ["attention_dropout"])
        raise ConfigError(f"attn_implementation={NAME} does not support {names}; {_ALTERNATIVES}")
    if position_ids is None or position_ids.ndim != 2:
        raise ConfigError(
            f"attn_implementation={NAME} needs the positions of the tokens, which "
            f"{type(module).__name__} does not pass to its attention; {_ALTERNATIVES}"
        )
    batch, heads, length, width = query.shape
    bounds = _bounds_of(position_ids, batch)
    # (tokens, heads, width); with autocast, the rotation returns queries and keys in float32
    q, k, v = (t.to(value.dtype).transpose(1, 2).flatten(0, 1) for t in (query, key, value))
    attend = _varlen if _on_gpu(value) else _per_sequence
    scale = width**-0.5 if scaling is None else scaling
    return attend(q, k, v, bounds, scale).view(batch, length, heads, width), None


class _Bounds:
    """The bounds of packed sequences: the start of each, and the number of all tokens.

    A sequence starts with a row, and where a position is not the one after that of the previous
    token. transformers has the same rule.
    """

    def __init__(self, position_ids: torch.Tensor) -> None:
        starts = torch.ones_like(position_ids, dtype=torch.bool)
        starts[:, 1:] = position_ids.diff() != 1
        self.list = [*starts.flatten().nonzero()[:, 0].tolist(), starts.numel()]
        self.tensor = torch.tensor(self.list, dtype=torch.int32, device=position_ids.device)
        self.longest = max(end - start for start, end in pairwise(self.list))


_known_bounds: Any = WeakTensorKeyDictionary()
"""The bounds by the tensor of positions, until that is freed: a copy to the host waits for the GPU,
and all layers of a forward pass get the same tensor. Each has the state that it was computed for:
the tensor's version, which changes with its content, and the batch size."""


def _bounds_of(position_ids: torch.Tensor, batch: int) -> _Bounds:
    if position_ids.is_inference():  # a tensor of torch.inference_mode has no version
        return _Bounds(position_ids.expand(batch, -1))
    state = (position_ids._version, batch)
    known, bounds = _known_bounds.get(position_ids, (None, None))
    if known != state:
        bounds = _Bounds(position_ids.expand(batch, -1))
        _known_bounds[position_ids] = (state, bounds)
    current: _Bounds = bounds
    return current


def _on_gpu(value: torch.Tensor) -> bool:
    """Return whether torch's kernel computes the attention."""
    return value.is_cuda and value.dtype in (torch.bfloat16, torch.float16)


def _varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: _Bounds, scale: float
) -> torch.Tensor:
    """Compute the attention with torch's kernel, whose arguments differ between versions."""
    if reason := missing_kernel():
        raise ConfigError(reason)
    from torch.nn.attention.varlen import varlen_attn

    accepted = signature(varlen_attn).parameters
    # torch 2.10 has is_causal instead of a window, and no scale
    window = "window_size" in accepted
    arguments: dict[str, Any] = {"window_size": (-1, 0)} if window else {"is_causal": True}
    if "scale" in accepted:
        arguments["scale"] = scale
    else:
        q = q * (scale * q.shape[-1] ** 0.5)
    if "enable_gqa" in accepted:
        arguments["enable_gqa"] = True
    else:
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    longest = bounds.longest
    mixed: torch.Tensor = varlen_attn(
        q, k, v, bounds.tensor, bounds.tensor, longest, longest, **arguments
    )
    return mixed


def _per_sequence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: _Bounds, scale: float
) -> torch.Tensor:
    """Compute the attention of one sequence at a time."""
    parts = []
    for start, end in pairwise(bounds.list):
        own_q, own_k, own_v = (t[start:end].transpose(0, 1)[None] for t in (q, k, v))
        mixed = functional.scaled_dot_product_attention(
            own_q, own_k, own_v, is_causal=True, scale=scale, enable_gqa=True
        )
        parts.append(mixed[0].transpose(0, 1))
    return torch.cat(parts)
