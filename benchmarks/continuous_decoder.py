"""Decoder of `continuous.py`: weights for fast decoding, key-value cache, and CUDA graphs.

A decoding step, with sampling, is one CUDA graph, captured per batch size and context size, and so
is a short prefill. On a CPU the same code runs without graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

__all__ = ["STEPS", "Decoder"]

STEPS = 4
"""Decoding steps between two reads by the host; tokens after the end of a turn are discarded."""
LONGEST_GRAPH = 128
"""Longest prefill that is captured as a CUDA graph; longer ones keep the GPU busy without one."""


class Decoder:
    """The weights in a layout for fast decoding, the key-value cache, and the captured graphs."""

    def __init__(self, model: Any, slots: int, context: int, seed: int) -> None:
        config = model.config
        self.model, self.context = model, context
        self.device = model.device
        self.graphs = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.graphs else torch.float32
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        self.weights: list[torch.Tensor] = []
        self.biased = model.model.layers[0].self_attn.q_proj.bias is not None
        """Whether queries, keys and values have biases, as in Qwen2."""
        self.refresh()
        self.slots = slots
        # the row after the last slot takes the padding of prefills
        shape = (config.num_hidden_layers, slots + 1, context, 2 * self.kv_heads, self.width)
        self.cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        rotary = model.model.rotary_emb
        cos, sin = rotary(
            torch.zeros(1, device=self.device), torch.arange(context, device=self.device)[None]
        )
        # a rotation is x * cos + roll(x, half) * sin, with the sign in the sine
        sign = torch.cat([-torch.ones(self.width // 2), torch.ones(self.width // 2)])
        self.cos = cos[0].to(self.dtype)
        self.sin = (sin[0] * sign.to(self.device)).to(self.dtype)
        self.rows = torch.arange(slots + 1, device=self.device)
        self.places = torch.arange(context, device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # inputs and outputs of the captured graphs, which must keep their addresses
        self.temperature = torch.ones((), device=self.device)
        self.noise = torch.ones((), device=self.device)
        self.token = self._zeros(slots + 1)
        self.place = self._zeros(slots + 1)
        self.moves = self._zeros(slots)
        self.step = self._zeros(1)
        self.prompts = self._zeros(slots, LONGEST_GRAPH)
        self.prompt_rows, self.starts, self.ends = (self._zeros(slots) for _ in range(3))
        self.out_tokens = self._zeros(STEPS + 1, slots + 1)
        self.out_logprobs = torch.zeros(STEPS + 1, slots + 1, device=self.device)
        self.captured: dict[tuple[int, ...], Any] = {}
        self.stream = torch.cuda.Stream() if self.graphs else None
        self.event = torch.cuda.Event() if self.graphs else None
        # no tensor of a graph outlives its replay, so all graphs share one memory
        self.pool = torch.cuda.graph_pool_handle() if self.graphs else None

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the trainer's weights in place, and concatenate matrices that are used together."""
        weights = []
        for layer in self.model.model.layers:
            a, m = layer.self_attn, layer.mlp
            projections = (a.q_proj, a.k_proj, a.v_proj)
            weights += [
                layer.input_layernorm.weight,
                torch.cat([p.weight for p in projections]),
                *([torch.cat([p.bias for p in projections])] if self.biased else []),
                a.o_proj.weight,
                layer.post_attention_layernorm.weight,
                torch.cat([m.gate_proj.weight, m.up_proj.weight]),
                m.down_proj.weight,
            ]
        weights += [
            self.model.model.norm.weight,
            self.model.lm_head.weight,
            self.model.model.embed_tokens.weight,
        ]
        if not self.weights:
            self.weights = [w.to(self.dtype, copy=True) for w in weights]
        for old, new in zip(self.weights, weights):
            old.copy_(new)
        if self.graphs:
            torch.cuda.synchronize()

    def set_temperature(self, temperature: float) -> None:
        """Set the temperature; 0 is greedy, without noise."""
        self.temperature.fill_(temperature or 1.0)
        self.noise.fill_(float(temperature > 0))

    @torch.no_grad()
    def prefill(self, rows: list[int], new: list[list[int]], starts: list[int]) -> None:
        """Add new tokens to the cache of these rows, and sample the next token of each."""
        most = max(1, 65536 // max(map(len, new)))
        for i in range(0, len(rows), most):
            part = slice(i, i + most)
            self._prefill_part(rows[part], new[part], starts[part])

    def _prefill_part(self, rows: list[int], new: list[list[int]], starts: list[int]) -> None:
        width = max(map(len, new))
        span = self._span(max(s + len(n) for s, n in zip(starts, new)))
        size = len(rows)
        with_graph = self.graphs and width <= LONGEST_GRAPH
        if with_graph:
            width = _rounded(width, 16, LONGEST_GRAPH)
            size = _rounded(size, 32, self.slots)
        spare = size - len(rows)
        inputs = (
            self._sent([[*ids, *[0] * (width - len(ids))] for ids in (*new, *[[0]] * spare)]),
            self._sent([*rows, *[self.slots] * spare]),
            self._sent([*starts, *[0] * spare]),
            self._sent([*(len(ids) - 1 for ids in new), *[0] * spare]),
        )
        if not with_graph:
            self._prefill(*inputs, span)
            return
        static = (
            self.prompts[:size, :width],
            self.prompt_rows[:size],
            self.starts[:size],
            self.ends[:size],
        )
        for tensor, values in zip(static, inputs):
            tensor.copy_(values)
        self._replay((size, width, span), lambda: self._prefill(*static, span))

    def _prefill(self, ids_B_T: Any, rows_B: Any, start_B: Any, last_B: Any, span: int) -> None:
        # padding is written after the prompt, where the next tokens overwrite it, or to the last
        # position, which is never read
        place_B_T = start_B[:, None] + self.places[: ids_B_T.shape[1]]
        place_B_T = place_B_T.clamp(max=self.context - 1)
        hidden_B_T_D = self._forward(ids_B_T, place_B_T, rows_B, span)
        token_B, logprob_B = self._sample(hidden_B_T_D[self.rows[: len(rows_B)], last_B])
        self.token[rows_B] = token_B
        self.place[rows_B] = start_B + last_B + 1
        self.out_tokens[0, rows_B] = token_B
        self.out_logprobs[0, rows_B] = logprob_B

    @torch.no_grad()
    def decode(self, running: list[int], longest: int) -> None:
        """Start to sample STEPS tokens for the running rows."""
        size = _rounded(max(running) + 1, 32, self.slots)
        span = self._span(longest + STEPS + 1)
        moves = [0] * self.slots
        for row in running:
            moves[row] = 1
        self.moves.copy_(self._sent(moves))
        place = self.place[: self.slots]
        place.copy_(torch.where(self.moves > 0, place, self.context - 1))
        self.step.fill_(1)
        for _ in range(STEPS):
            self._replay((size, span), lambda: self._decode(size, span))
        if self.event is not None:
            self.event.record()

    def finished(self) -> bool:
        """Return whether all steps that were started are finished."""
        return self.event is None or bool(self.event.query())

    def read(self) -> tuple[list[list[int]], list[list[float]]]:
        """Return (tokens, logprobs) by step and row: of the last prefill, then of each step."""
        return self.out_tokens.tolist(), self.out_logprobs.tolist()

    def _sent(self, values: list[Any]) -> torch.Tensor:
        """Return a tensor of integers on the model's device, without waiting for its work."""
        if not self.graphs:
            return torch.tensor(values)
        return torch.tensor(values, pin_memory=True).to(self.device, non_blocking=True)

    def _decode(self, size: int, span: int) -> None:
        """Decode one step of the first `size` rows.

        Rows that are not running write to the last position, and their results are ignored.
        """
        hidden_B_T_D = self._forward(self.token[:size, None], self.place[:size, None], None, span)
        token_B, logprob_B = self._sample(hidden_B_T_D[:, 0])
        self.out_tokens[:, :size].index_copy_(0, self.step, token_B[None])
        self.out_logprobs[:, :size].index_copy_(0, self.step, logprob_B[None])
        self.token[:size].copy_(torch.where(self.moves[:size] > 0, token_B, self.token[:size]))
        self.place[:size].copy_((self.place[:size] + self.moves[:size]).clamp(max=self.context - 1))
        self.step.add_(1)

    def _replay(self, key: tuple[int, ...], call: Callable[[], None]) -> None:
        """Run `call` as a CUDA graph, which is captured at the first call with this key."""
        if not self.graphs:
            call()
            return
        if key not in self.captured:
            state = (self.token, self.place, self.step, self.out_tokens, self.out_logprobs)
            saved = [tensor.clone() for tensor in state]
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):  # warm up: libraries initialise in the first call
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                call()
            for tensor, before in zip(state, saved):
                tensor.copy_(before)
            self.captured[key] = graph
        self.captured[key].replay()

    def _span(self, tokens: int) -> int:
        """Return the part of the cache to attend to, in few sizes: each size needs a graph."""
        return _rounded(tokens, 128, self.context)

    def _forward(self, ids_B_T: Any, place_B_T: Any, rows_B: Any, span: int) -> torch.Tensor:
        """Return the hidden states after the last layer, and write keys and values to the cache.

        `rows_B` None: the first rows. The kernels of a step are too small to fill a GPU, so their
        number decides the speed: matrix products include the sums, the mask is made once, keys and
        values are written together.
        """
        B, T = ids_B_T.shape
        H, K, D = self.heads, self.kv_heads, self.width
        weights = iter(self.weights[:-3])
        norm_D, _, embedding_V_D = self.weights[-3:]
        x_N_E = embedding_V_D[ids_B_T.reshape(-1)]
        cos, sin = self.cos[place_B_T].view(B * T, 1, D), self.sin[place_B_T].view(B * T, 1, D)
        # heads that share keys become further queries of one head, so keys are not repeated
        visible_B_T_S = self.places[:span] <= place_B_T[:, :, None]
        mask_B_T_S = torch.where(visible_B_T_S, 0.0, float("-inf")).to(self.dtype)
        mask = mask_B_T_S[:, None, None].expand(B, 1, H // K, T, span)
        mask = mask.reshape(B, 1, H // K * T, span)
        rows = self.rows[:B] if rows_B is None else rows_B
        where_N = (rows[:, None] * self.context + place_B_T).view(-1)
        for cache in self.cache:
            a_norm, qkv = next(weights), next(weights)
            qkv_bias = next(weights) if self.biased else None
            out, m_norm, gate_up, down = (next(weights) for _ in range(4))
            h = functional.linear(
                functional.rms_norm(x_N_E, a_norm.shape, a_norm, self.epsilon), qkv, qkv_bias
            ).view(B * T, H + 2 * K, D)
            rotated = h[:, : H + K]
            torch.addcmul(rotated * cos, rotated.roll(D // 2, -1), sin, out=rotated)
            cache.view(-1, 2 * K, D).index_copy_(0, where_N, h[:, H:])
            cached = cache[:B, :span] if rows_B is None else cache[rows_B, :span]
            k, v = cached[:, :, :K].transpose(1, 2), cached[:, :, K:].transpose(1, 2)
            q = (
                h[:, :H]
                .view(B, T, K, H // K, D)
                .permute(0, 2, 3, 1, 4)
                .reshape(B, K, H // K * T, D)
            )
            a = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            a = a.view(B, K, H // K, T, D).permute(0, 3, 1, 2, 4).reshape(B * T, H * D)
            x_N_E = torch.addmm(x_N_E, a, out.t())
            gate, up = functional.linear(
                functional.rms_norm(x_N_E, m_norm.shape, m_norm, self.epsilon), gate_up
            ).chunk(2, -1)
            x_N_E = torch.addmm(x_N_E, functional.silu(gate) * up, down.t())
        return functional.rms_norm(x_N_E, norm_D.shape, norm_D, self.epsilon).view(B, T, -1)

    def _sample(self, hidden_B_D: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample a token per row by the Gumbel-max trick, and return (tokens, logprobs)."""
        logits_B_V = functional.linear(hidden_B_D, self.weights[-2]).float() / self.temperature
        noise_B_V = torch.empty_like(logits_B_V).exponential_(generator=self.generator)
        noise_B_V = noise_B_V.clamp_(min=2.0**-24).log_()  # exponential_ may draw 0
        token_B = (logits_B_V - self.noise * noise_B_V).argmax(-1)
        logprob_B = logits_B_V.gather(1, token_B[:, None])[:, 0] - logits_B_V.logsumexp(-1)
        return token_B, logprob_B * self.noise


def _rounded(number: int, least: int, most: int) -> int:
    """Return `least`, doubled until it is at least the number, but at most `most`."""
    return min(most, least * 2 ** max(0, math.ceil(math.log2(number / least))))
