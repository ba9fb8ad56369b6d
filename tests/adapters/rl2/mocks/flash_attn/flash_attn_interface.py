"""Flash-attn's functions for packed sequences.

On a GPU they call the kernels of `torch.nn.attention.varlen`, which are flash-attn's and part of
torch. On the CPU they compute the same with matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NoReturn

import torch


def _flash_attn_varlen_forward(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    alibi_slopes: Any = None,
    return_softmax: bool = False,
) -> tuple[Any, Any, None, None]:
    """Return (output, logsumexp of the scores, None, None)."""
    _check(dropout_p, causal, alibi_slopes)
    window = (window_size_left, window_size_right)
    if q.is_cuda:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            dropout_p,
            causal,
            return_debug_mask=False,
            scale=softmax_scale,
            window_size_left=window[0],
            window_size_right=window[1],
        )
        return out, lse, None, None
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0])
    for rows, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
        out[rows], lse[:, rows] = _attend(q[rows], k[keys], v[keys], softmax_scale, window)
    return out, lse, None, None


def _flash_attn_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    alibi_slopes: Any = None,
    deterministic: bool = False,
) -> None:
    """Write the gradients into `dq`, `dk` and `dv`."""
    _check(dropout_p, causal, alibi_slopes)
    window = (window_size_left, window_size_right)
    if q.is_cuda:
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
        gradients = torch.ops.aten._flash_attention_backward(
            dout,
            q,
            k,
            v,
            out,
            softmax_lse,
            cu_seqlens_q,
            cu_seqlens_k,
            max_seqlen_q,
            max_seqlen_k,
            dropout_p,
            causal,
            no_dropout,
            torch.empty(0, device=q.device),
            scale=softmax_scale,
            window_size_left=window[0],
            window_size_right=window[1],
        )
        for target, gradient in zip((dq, dk, dv), gradients):
            target.copy_(gradient)
        return
    for rows, keys in _sequences(cu_seqlens_q, cu_seqlens_k):
        inputs = [x.detach().requires_grad_() for x in (q[rows], k[keys], v[keys])]
        with torch.enable_grad():
            attended, _ = _attend(*inputs, softmax_scale, window)
        gradients = torch.autograd.grad(attended, inputs, dout[rows])
        dq[rows], dk[keys], dv[keys] = gradients


def not_in_mock(*args: Any, **kwargs: Any) -> NoReturn:
    """Stand for a function that is imported but not called."""
    raise RuntimeError("this function is not part of the mock of flash-attn; RL2 does not call it")


_flash_attn_forward = _flash_attn_backward = not_in_mock
flash_attn_func = flash_attn_varlen_func = not_in_mock


def _check(dropout_p: float, causal: bool, alibi_slopes: Any) -> None:
    if dropout_p or not causal or alibi_slopes is not None:
        raise RuntimeError("the mock of flash-attn computes causal attention without dropout")


def _sequences(cu_seqlens_q: Any, cu_seqlens_k: Any) -> Iterator[tuple[slice, slice]]:
    """Yield the rows of q and of k of each sequence."""
    for q, k in zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist())):
        yield slice(*q), slice(*k)


def _attend(q: Any, k: Any, v: Any, scale: float, window: tuple[int, int]) -> tuple[Any, Any]:
    """Return (output, logsumexp) of one sequence; the last rows of q and k are the same token."""
    dtype, groups = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, dim=0) for x in (k, v))
    distance = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None] - torch.arange(k.shape[1])
    hidden = distance < 0
    if window[0] >= 0:
        hidden |= distance > window[0]
    scores = (q @ k.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).to(dtype), scores.logsumexp(-1)
