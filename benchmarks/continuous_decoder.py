"""Decoder of `continuous.py`: weights for fast decoding, key-value cache, and CUDA graphs.

A decoding step, with sampling, is one CUDA graph per batch size and context size, and so is a short
prefill. The second use of a size captures its graph. On a CPU the same code runs without graphs.

The decoder has several lanes. A lane is a model, and all models have the same shape. The time of a
decoding step depends on the number of kernels, hardly on the batch size, so the kernels process all
lanes at once: their weights are stacked, and a matrix product has one batch entry per lane. Row
`slot * lanes + lane` of the cache belongs to a slot of a lane, so the first slots of all lanes are
one block of memory, which attention reads without a copy.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from packed import of_any_length
from torch.nn import functional

__all__ = ["STEPS", "Decoder"]

STEPS = 4
"""Decoding steps between two reads by the host; tokens after the end of a turn are discarded."""
LONGEST_GRAPH = 128
"""Longest prefill that is captured as a CUDA graph; longer ones keep the GPU busy without one."""


Prompt = tuple[int, list[int], int]
"""The row of a prompt, its new tokens, and the number of its cached tokens."""


class Decoder:
    """The weights in a layout for fast decoding, the key-value cache, and the captured graphs."""

    def __init__(self, models: Sequence[Any], slots: int, context: int, seed: int) -> None:
        """Create a decoder with `slots` slots for each model."""
        model = models[0]
        config = model.config
        self.models, self.lanes, self.context = models, len(models), context
        self.device = model.device
        self.use_graphs = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.use_graphs else torch.float32
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        self.rotate, self.gate = (
            torch.compile(call) if self.use_graphs else call for call in (_rotate, _gate)
        )
        self.weights: list[torch.Tensor] = []
        """The weights of all lanes: the first dimension is the lane."""
        self.biased = model.model.layers[0].self_attn.q_proj.bias is not None
        """Whether queries, keys and values have biases, as in Qwen2."""
        for lane in range(self.lanes):
            self.refresh(lane)
        self.slots = slots
        # the row of each lane after its last slot takes the padding of prefills
        rows = (slots + 1) * self.lanes
        shape = (config.num_hidden_layers, rows, context, 2 * self.kv_heads, self.width)
        self.cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        rotary = model.model.rotary_emb
        cos, sin = rotary(
            torch.zeros(1, device=self.device), torch.arange(context, device=self.device)[None]
        )
        # a rotation is x * cos + roll(x, half) * sin, with the sign in the sine
        sign = torch.cat([-torch.ones(self.width // 2), torch.ones(self.width // 2)])
        self.cos = cos[0].to(self.dtype)
        self.sin = (sin[0] * sign.to(self.device)).to(self.dtype)
        self.rows = torch.arange(rows, device=self.device)
        self.lane_R = torch.arange(self.lanes, device=self.device)
        self.places = torch.arange(context, device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # inputs and outputs of the captured graphs, which must keep their addresses
        self.temperature_R_1 = torch.ones(self.lanes, 1, device=self.device)
        self.noise_R_1 = torch.ones(self.lanes, 1, device=self.device)
        self.token, self.place = self._zeros(rows), self._zeros(rows)
        self.active = self._zeros(slots * self.lanes)
        self.step = self._zeros(1)
        self.prompts = self._zeros(slots * self.lanes, LONGEST_GRAPH)
        self.prompt_rows, self.starts, self.ends = (
            self._zeros(slots * self.lanes) for _ in range(3)
        )
        self.out_tokens = self._zeros(STEPS + 1, rows)
        self.out_logprobs = torch.zeros(STEPS + 1, rows, device=self.device)
        self.seen: set[tuple[int, ...]] = set()
        self.captured: dict[tuple[int, ...], Any] = {}
        self.stream = torch.cuda.Stream() if self.use_graphs else None
        self.event = torch.cuda.Event() if self.use_graphs else None
        # no tensor of a graph outlives its replay, so all graphs share one memory
        self.pool = torch.cuda.graph_pool_handle() if self.use_graphs else None

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def refresh(self, lane: int) -> None:
        """Copy a model's weights in place, and concatenate matrices that are used together."""
        model, weights = self.models[lane], []
        for layer in model.model.layers:
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
            model.model.norm.weight,
            model.lm_head.weight,
            model.model.embed_tokens.weight,
        ]
        if not self.weights:
            self.weights = [w.new_empty(self.lanes, *w.shape, dtype=self.dtype) for w in weights]
        for old, new in zip(self.weights, weights):
            old[lane].copy_(new)
        if self.use_graphs:
            torch.cuda.synchronize()

    def set_temperature(self, lane: int, temperature: float) -> None:
        """Set the temperature of a lane; 0 is greedy, without noise."""
        self.temperature_R_1[lane].fill_(temperature or 1.0)
        self.noise_R_1[lane].fill_(float(temperature > 0))

    @torch.no_grad()
    def prefill(self, rows: list[int], new: list[list[int]], starts: list[int]) -> None:
        """Add new tokens to the cache of these rows, and sample the next token of each."""
        lanes: list[list[Prompt]] = [[] for _ in range(self.lanes)]
        for row, ids, start in zip(rows, new, starts):
            lanes[row % self.lanes].append((row, ids, start))
        most = max(1, 65536 // (max(map(len, new)) * self.lanes))
        for i in range(0, max(map(len, lanes)), most):
            self._prefill_part([lane[i : i + most] for lane in lanes])

    def _prefill_part(self, lanes: list[list[Prompt]]) -> None:
        prompts = [prompt for lane in lanes for prompt in lane]
        width = max(len(ids) for _, ids, _ in prompts)
        span = self._span(max(start + len(ids) for _, ids, start in prompts))
        size = max(map(len, lanes))
        with_graph = self.use_graphs and width <= LONGEST_GRAPH
        if with_graph:
            width = _rounded(width, 16, LONGEST_GRAPH)
            size = _rounded(size, 32, self.slots)
        # the same number of prompts per lane, slot by slot like the rows of the cache
        padding = [(self.slots * self.lanes + i, [0], 0) for i in range(self.lanes)]
        padded = [lane + [padding[i]] * (size - len(lane)) for i, lane in enumerate(lanes)]
        prompts = [prompt for same_slot in zip(*padded) for prompt in same_slot]
        flat: list[int] = []
        for _, ids, _ in prompts:
            flat += ids
            flat += [0] * (width - len(ids))
        inputs = (
            self._sent(flat).view(-1, width),
            self._sent([row for row, _, _ in prompts]),
            self._sent([start for _, _, start in prompts]),
            self._sent([len(ids) - 1 for _, ids, _ in prompts]),
        )
        if not with_graph:
            self._prefill(*inputs, span)
            return
        count = len(prompts)
        static = (
            self.prompts[:count, :width],
            self.prompt_rows[:count],
            self.starts[:count],
            self.ends[:count],
        )
        for tensor, values in zip(static, inputs):
            tensor.copy_(values)
        self._as_graph((size, width, span), lambda: self._prefill(*static, span))()

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
        size = _rounded(max(running) // self.lanes + 1, 32, self.slots) * self.lanes
        span = self._span(longest + STEPS + 1)
        active = [0] * len(self.active)
        for row in running:
            active[row] = 1
        self.active.copy_(self._sent(active))
        place = self.place[: len(active)]
        place.copy_(torch.where(self.active > 0, place, self.context - 1))
        self.step.fill_(1)
        step = self._as_graph((size, span), lambda: self._decode(size, span))
        for _ in range(STEPS):
            step()
        if self.event is not None:
            self.event.record()

    def finished(self) -> bool:
        """Return whether all steps that were started are finished."""
        return self.event is None or bool(self.event.query())

    def read(self) -> tuple[list[list[int]], list[list[float]]]:
        """Return (tokens, logprobs) by row and step: of the last prefill, then of each step."""
        return self.out_tokens.t().tolist(), self.out_logprobs.t().tolist()

    def _sent(self, values: list[int]) -> torch.Tensor:
        """Return a tensor of integers on the model's device, without waiting for its work."""
        # faster than torch.tensor(values)
        sent = torch.frombuffer(array("q", values), dtype=torch.long)
        return sent.pin_memory().to(self.device, non_blocking=True) if self.use_graphs else sent

    def _decode(self, size: int, span: int) -> None:
        """Decode one step of the first `size` rows, the first slots of every lane.

        Rows that are not running write to the last position, and their results are ignored.
        """
        hidden_B_T_D = self._forward(self.token[:size, None], self.place[:size, None], None, span)
        token_B, logprob_B = self._sample(hidden_B_T_D[:, 0])
        self.out_tokens[:, :size].index_copy_(0, self.step, token_B[None])
        self.out_logprobs[:, :size].index_copy_(0, self.step, logprob_B[None])
        self.token[:size].copy_(torch.where(self.active[:size] > 0, token_B, self.token[:size]))
        next_place = self.place[:size] + self.active[:size]
        self.place[:size].copy_(next_place.clamp(max=self.context - 1))
        self.step.add_(1)

    def _as_graph(self, key: tuple[int, ...], call: Callable[[], None]) -> Callable[[], None]:
        """Return `call` as a CUDA graph, which is captured at the second request for this key."""
        if not self.use_graphs or key not in self.seen:  # a size may never occur again
            self.seen.add(key)
            return call
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
        replay: Callable[[], None] = self.captured[key].replay
        return replay

    def _span(self, tokens: int) -> int:
        """Return the part of the cache to attend to, in few sizes: each size needs a graph."""
        return _rounded(tokens, 128, self.context)

    def _forward(self, ids_B_T: Any, place_B_T: Any, rows_B: Any, span: int) -> torch.Tensor:
        """Return the hidden states after the last layer, and write keys and values to the cache.

        `rows_B` None: the first rows. In both cases row i is of lane i % R. The kernels of a step
        are too small to fill a GPU, so their number decides the speed: the residual is added in the
        matrix product, the mask is made once, keys and values are written together.
        """
        B, T = ids_B_T.shape
        R, H, K, D = self.lanes, self.heads, self.kv_heads, self.width

        def by_lane(values_B_T: torch.Tensor) -> torch.Tensor:  # N: the tokens of a lane
            return values_B_T.view(B // R, R, T).transpose(1, 2).reshape(-1, R).contiguous()

        weights = iter(self.weights[:-3])
        norm_R_E, _, embedding_R_V_E = self.weights[-3:]
        x_N_R_E = embedding_R_V_E[self.lane_R, by_lane(ids_B_T)]
        place_N_R = by_lane(place_B_T)
        cos, sin = self.cos[place_N_R].view(B * T, 1, D), self.sin[place_N_R].view(B * T, 1, D)
        # heads that share keys become further queries of one head, so keys are not repeated
        visible_B_T_S = self.places[:span] <= place_B_T[:, :, None]
        mask_B_T_S = torch.where(visible_B_T_S, 0.0, float("-inf")).to(self.dtype)
        mask = mask_B_T_S[:, None, None].expand(B, 1, H // K, T, span)
        mask = mask.reshape(B, 1, H // K * T, span)
        rows = self.rows[:B] if rows_B is None else rows_B
        where_N = by_lane(rows[:, None] * self.context + place_B_T).view(-1)
        for cache in self.cache:
            a_norm, qkv = next(weights), next(weights)
            qkv_bias = next(weights) if self.biased else None
            out, m_norm, gate_up, down = (next(weights) for _ in range(4))
            h = self._linear(self._norm(x_N_R_E, a_norm), qkv, qkv_bias).view(B * T, H + 2 * K, D)
            of_any_length(h, cos, sin)
            queries, keys_and_values = self.rotate(h, cos, sin, H, K)
            cache.view(-1, 2 * K, D).index_copy_(0, where_N, keys_and_values)
            cached = cache[:B, :span] if rows_B is None else cache[rows_B, :span]
            k, v = cached[:, :, :K].transpose(1, 2), cached[:, :, K:].transpose(1, 2)
            q = queries.view(B // R, T, R, K, H // K, D).permute(0, 2, 3, 4, 1, 5)
            q = q.reshape(B, K, H // K * T, D)
            a = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            a = a.view(B // R, R, K, H // K, T, D).permute(0, 4, 1, 2, 3, 5).reshape(-1, R, H * D)
            x_N_R_E = self._add_linear(x_N_R_E, a, out)
            gate_and_up = self._linear(self._norm(x_N_R_E, m_norm), gate_up)
            of_any_length(gate_and_up)
            gated = self.gate(gate_and_up)
            x_N_R_E = self._add_linear(x_N_R_E, gated, down)
        x_N_R_E = self._norm(x_N_R_E, norm_R_E)
        return x_N_R_E.view(B // R, T, R, -1).transpose(1, 2).reshape(B, T, -1)

    def _norm(self, x_N_R_E: torch.Tensor, weight_R_E: torch.Tensor) -> torch.Tensor:
        size = x_N_R_E.shape[-1:]
        if self.lanes == 1:
            return functional.rms_norm(x_N_R_E, size, weight_R_E[0], self.epsilon)
        # rounds to bfloat16 twice; rounding once would need a third kernel
        return functional.rms_norm(x_N_R_E, size, None, self.epsilon) * weight_R_E

    def _linear(self, x_N_R_E: Any, weight_R_F_E: Any, bias_R_F: Any = None) -> torch.Tensor:
        """Multiply by the matrix of each lane, and add its bias."""
        if self.lanes == 1:
            bias_F = None if bias_R_F is None else bias_R_F[0]
            return functional.linear(x_N_R_E[:, 0], weight_R_F_E[0], bias_F)[:, None]
        N, R, F = len(x_N_R_E), *weight_R_F_E.shape[:2]
        if bias_R_F is not None:
            return self._add_linear(bias_R_F.repeat(N, 1, 1), x_N_R_E, weight_R_F_E)
        y_N_R_F = x_N_R_E.new_empty(N, R, F)
        torch.bmm(x_N_R_E.transpose(0, 1), weight_R_F_E.mT, out=y_N_R_F.transpose(0, 1))
        return y_N_R_F

    def _add_linear(self, y_N_R_F: Any, x_N_R_E: Any, weight_R_F_E: Any) -> torch.Tensor:
        """Return `y` plus the product with the matrix of each lane; `y` may be overwritten."""
        if self.lanes == 1:
            return torch.addmm(y_N_R_F[:, 0], x_N_R_E[:, 0], weight_R_F_E[0].t())[:, None]
        y_N_R_F.transpose(0, 1).baddbmm_(x_N_R_E.transpose(0, 1), weight_R_F_E.mT)
        return y_N_R_F

    def _sample(self, hidden_B_E: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample a token per row by the Gumbel-max trick, and return (tokens, logprobs)."""
        hidden_N_R_E = hidden_B_E.view(-1, self.lanes, hidden_B_E.shape[-1])
        logits_N_R_V = self._linear(hidden_N_R_E, self.weights[-2]).float()
        logits_N_R_V.div_(self.temperature_R_1)
        noise_N_R_V = torch.empty_like(logits_N_R_V).exponential_(generator=self.generator)
        noise_N_R_V = noise_N_R_V.clamp_(min=2.0**-24).log_()  # exponential_ may draw 0
        noisy_N_R_V = torch.addcmul(logits_N_R_V, noise_N_R_V, self.noise_R_1, value=-1)
        token_N_R_1 = noisy_N_R_V.argmax(-1, keepdim=True)
        total_N_R_1 = logits_N_R_V.logsumexp(-1, keepdim=True)
        logprob_N_R_1 = (logits_N_R_V.gather(-1, token_N_R_1) - total_N_R_1) * self.noise_R_1
        return token_N_R_1.view(-1), logprob_N_R_1.view(-1)


def _rotate(
    h_M_F_D: Any, cos: Any, sin: Any, heads: int, kv_heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rotated queries, and keys with values; `h` has the heads of all three."""
    rotating, values = h_M_F_D.split([heads + kv_heads, kv_heads], 1)
    rotated = rotating * cos + rotating.roll(rotating.shape[-1] // 2, -1) * sin
    queries, keys = rotated.split([heads, kv_heads], 1)
    return queries.contiguous(), torch.cat([keys, values], 1)


def _gate(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def _rounded(number: int, least: int, most: int) -> int:
    """Return `least`, doubled until it is at least the number, but at most `most`."""
    return min(most, least * 2 ** max(0, math.ceil(math.log2(number / least))))
