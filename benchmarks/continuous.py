"""Policy with continuous batching for small Llama models in this process.

    policy = ContinuousPolicy(model, tokenizer, slots=256, context=1024)

Every episode has a slot with the keys and values of its turns, so a turn only processes the tokens
since the last turn. Turns join and leave the running batch independently. A decoding step, with
sampling, is one CUDA graph, captured per batch size and context size; the host reads the tokens
every few steps. `refresh` copies the weights of the trainer's model. On a CPU the same code runs
without graphs, which is how it is tested.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from gem_core import FinishReason, Generation, Sampling
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.transformers_policy import stop_ids_of

__all__ = ["ContinuousPolicy"]

STEPS = 4
"""Decoding steps between two reads by the host; tokens after the end of a turn are discarded."""
PATIENCE = 0.02
"""Seconds a turn may wait for others: starting one turn costs about as much as starting fifty."""


@dataclass(eq=False)
class _Request:
    ids: list[int]
    sampling: Sampling
    episode: asyncio.Task[Any] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]
    arrived: float
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """The cache slot of one episode."""

    episode: asyncio.Task[Any] | None = None
    ids: list[int] = field(default_factory=list)
    """The tokens whose keys and values are cached."""
    request: _Request | None = None


class ContinuousPolicy:
    """Sample from a transformers Llama model, without top-k, top-p, stop strings and seeds."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        slots: int = 256,
        context: int = 1024,
        stop_ids: Iterable[int] | None = None,
        seed: int = 0,
    ) -> None:
        if model.config.model_type != "llama":
            raise ConfigError(
                f"this engine supports models of type 'llama'; got {model.config.model_type!r}"
            )
        self.stop_ids = stop_ids_of(model, tokenizer) if stop_ids is None else frozenset(stop_ids)
        self.weight_version = 0
        self.context = context
        self.tokens = 0
        """Tokens sampled so far."""
        self.seconds = 0.0
        """Seconds in which the engine was busy."""
        self._decoder = _Decoder(model, slots, context, seed)
        self._slots = [_Slot() for _ in range(slots)]
        self._waiting: deque[_Request] = deque()
        self._condition = threading.Condition()
        self._closed = False
        self._live = 0
        self._temperature = 1.0
        """Temperature of the running batch; requests with another one wait until it is empty."""
        self._thread = threading.Thread(target=self._run, name="gem-continuous", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Copy the model's weights between two batches, and drop the cache of the old weights."""
        self._decoder.refresh()
        self.weight_version += 1
        for slot in self._slots:
            slot.episode, slot.ids = None, []

    def seed(self, seed: int) -> None:
        """Seed the sampling; it is reproducible if the turns arrive in the same order."""
        self._decoder.generator.manual_seed(seed)

    def set_live(self, episodes: int) -> None:
        """Set the number of running episodes; the rollout engine calls this."""
        self._live = episodes

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Sample a turn."""
        _check(prompt_ids, sampling, self.context)
        loop = asyncio.get_running_loop()
        request = _Request(
            list(prompt_ids),
            sampling,
            asyncio.current_task(),
            loop,
            loop.create_future(),
            time.monotonic(),
        )
        with self._condition:
            self._waiting.append(request)
            self._condition.notify()
        return await request.future

    def close(self) -> None:
        """End the engine's thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(10.0)

    def _run(self) -> None:
        while True:
            with self._condition:
                busy = any(slot.request is not None for slot in self._slots)
                while not self._closed and not busy and not self._waiting:
                    self._condition.wait()
                if self._closed:
                    return
            began = time.monotonic()
            try:
                self._admit()
                self._advance()
            except Exception as error:  # noqa: BLE001 - the waiting requests get it
                self._fail(error)
            self.seconds += time.monotonic() - began

    def _admit(self) -> None:
        """Start the waiting turns, unless there are too few and more will arrive soon."""
        running = sum(slot.request is not None for slot in self._slots)
        with self._condition:
            count = len(self._waiting)
            if not count:
                return
            enough = count >= min(max(1, self._live // 4), self._live - running)
            if not enough and time.monotonic() - self._waiting[0].arrived < PATIENCE:
                if not running:
                    self._condition.wait(0.001)
                return
            free = [slot for slot in self._slots if slot.request is None]
            by_episode = {
                slot.episode: slot
                for slot in free
                if slot.episode is not None and not slot.episode.done()
            }
            empty = [slot for slot in free if slot.episode not in by_episode]
            if not running:
                self._temperature = self._waiting[0].sampling.temperature
            admitted: list[_Slot] = []
            later: deque[_Request] = deque()
            for request in self._waiting:
                slot = by_episode.get(request.episode) if request.episode is not None else None
                if request.sampling.temperature != self._temperature or (
                    slot is None and not empty
                ):
                    later.append(request)
                    continue
                if slot is None:
                    slot = empty.pop(0)
                    slot.episode, slot.ids = request.episode, []
                slot.request = request
                admitted.append(slot)
            self._waiting = later
        # long first prompts separately from short additions
        first = [slot for slot in admitted if not slot.ids]
        later_turns = [slot for slot in admitted if slot.ids]
        for group in (first, later_turns):
            if group:
                self._begin(group)

    def _begin(self, slots: Sequence[_Slot]) -> None:
        """Prefill the tokens of the prompts that are not cached, and sample the first tokens."""
        rows, new, starts = [], [], []
        for slot in slots:
            assert slot.request is not None
            ids = slot.request.ids
            # always process the last token: sampling needs its logits
            cached = min(len(slot.ids), len(ids) - 1)
            if slot.ids[:cached] != ids[:cached]:
                cached = 0  # a rewritten history
            rows.append(self._slots.index(slot))
            new.append(ids[cached:])
            starts.append(cached)
            slot.ids = list(ids)
        self._decoder.set_temperature(self._temperature)
        tokens, logprobs = self._decoder.prefill(rows, new, starts)
        for slot, token, logprob in zip(slots, tokens, logprobs):
            self._take(slot, token, logprob)

    def _advance(self) -> None:
        """Run STEPS decoding steps for all running slots."""
        running = [i for i, slot in enumerate(self._slots) if slot.request is not None]
        if not running:
            return
        longest = max(len(self._slots[i].ids) for i in running)
        steps_tokens, steps_logprobs = self._decoder.decode(running, longest)
        for tokens, logprobs in zip(steps_tokens, steps_logprobs):
            for i in running:
                slot = self._slots[i]
                if slot.request is not None:
                    slot.ids.append(slot.request.sampled[-1])
                    self._take(slot, tokens[i], logprobs[i])

    def _take(self, slot: _Slot, token: int, logprob: float) -> None:
        """Add a token to a turn, and finish the turn if it is the last."""
        request = slot.request
        assert request is not None
        request.sampled.append(token)
        request.logprobs.append(logprob)
        self.tokens += 1
        full = len(request.ids) + len(request.sampled) >= self.context - 1
        if token in self.stop_ids or full or len(request.sampled) >= request.sampling.max_tokens:
            slot.request = None
            finish = FinishReason.STOP if token in self.stop_ids else FinishReason.LENGTH
            versions = (self.weight_version, self.weight_version)
            ids, logprobs = tuple(request.sampled), tuple(request.logprobs)
            _settle(request, Generation(ids, logprobs, finish, versions=versions))

    def _fail(self, error: Exception) -> None:
        with self._condition:
            requests = [slot.request for slot in self._slots if slot.request is not None]
            requests += self._waiting
            self._waiting.clear()
        for slot in self._slots:
            slot.request, slot.episode, slot.ids = None, None, []
        for request in requests:
            _settle(request, PolicyError(f"the engine failed: {type(error).__name__}: {error}"))


class _Decoder:
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
        self.refresh()
        shape = (config.num_hidden_layers, slots, context, 2 * self.kv_heads, self.width)
        self.cache = torch.zeros(shape, dtype=self.dtype, device=self.device)
        rotary = model.model.rotary_emb
        cos, sin = rotary(
            torch.zeros(1, device=self.device), torch.arange(context, device=self.device)[None]
        )
        # a rotation is x * cos + roll(x, half) * sin, with the sign in the sine
        sign = torch.cat([-torch.ones(self.width // 2), torch.ones(self.width // 2)])
        self.cos = cos[0].to(self.dtype)
        self.sin = (sin[0] * sign.to(self.device)).to(self.dtype)
        self.rows = torch.arange(slots, device=self.device)
        self.places = torch.arange(context, device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        # inputs and outputs of the captured graphs, which must keep their addresses
        self.temperature = torch.ones((), device=self.device)
        self.noise = torch.ones((), device=self.device)
        self.token = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.place = torch.full((slots,), context - 1, dtype=torch.long, device=self.device)
        self.moves = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.out_tokens = torch.zeros(STEPS, slots, dtype=torch.long, device=self.device)
        self.out_logprobs = torch.zeros(STEPS, slots, device=self.device)
        self.step = torch.zeros(1, dtype=torch.long, device=self.device)
        self.captured: dict[tuple[int, int], Any] = {}
        self.stream = torch.cuda.Stream() if self.graphs else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the trainer's weights in place, and concatenate matrices that are used together."""
        weights = []
        for layer in self.model.model.layers:
            a, m = layer.self_attn, layer.mlp
            weights += [
                layer.input_layernorm.weight,
                torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]),
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
    def prefill(
        self, rows: list[int], new: list[list[int]], starts: list[int]
    ) -> tuple[list[int], list[float]]:
        """Add new tokens to the cache of these rows, and sample the next token of each."""
        tokens: list[int] = []
        logprobs: list[float] = []
        most = max(1, 65536 // max(map(len, new)))
        for i in range(0, len(rows), most):
            part = slice(i, i + most)
            token_B, logprob_B = self._prefill(rows[part], new[part], starts[part])
            tokens += token_B.tolist()
            logprobs += logprob_B.tolist()
        return tokens, logprobs

    def _prefill(
        self, rows: list[int], new: list[list[int]], starts: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, new))
        ids_B_T = torch.tensor([row + [0] * (width - len(row)) for row in new], device=self.device)
        start_B = torch.tensor(starts, device=self.device)
        last_B = torch.tensor([len(row) - 1 for row in new], device=self.device)
        rows_B = torch.tensor(rows, device=self.device)
        # padding is written after the prompt, where the next tokens overwrite it, or to the last
        # position, which is never read
        place_B_T = start_B[:, None] + torch.arange(width, device=self.device)
        place_B_T = place_B_T.clamp(max=self.context - 1)
        span = self._span(max(s + len(n) for s, n in zip(starts, new)))
        hidden_B_T_D = self._forward(ids_B_T, place_B_T, rows_B, span)
        hidden_B_D = hidden_B_T_D[torch.arange(len(rows), device=self.device), last_B]
        token_B, logprob_B = self._sample(hidden_B_D)
        self.token[rows_B] = token_B
        self.place[rows_B] = start_B + last_B + 1
        return token_B, logprob_B

    @torch.no_grad()
    def decode(self, running: list[int], longest: int) -> tuple[list[list[int]], list[list[float]]]:
        """Sample STEPS tokens for the running rows; return (tokens, logprobs) by step and row."""
        size = _rounded(max(running) + 1, 32, len(self.token))
        span = self._span(longest + STEPS + 1)
        moves = torch.zeros(len(self.token), dtype=torch.long)
        moves[running] = 1
        self.moves.copy_(moves)
        self.place.copy_(torch.where(self.moves > 0, self.place, self.context - 1))
        self.step.zero_()
        for _ in range(STEPS):
            if self.graphs:
                self._graph(size, span).replay()
            else:
                self._decode(size, span)
        return self.out_tokens[:, :size].tolist(), self.out_logprobs[:, :size].tolist()

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

    def _graph(self, size: int, span: int) -> Any:
        if (size, span) not in self.captured:
            state = (self.token, self.place, self.step, self.out_tokens, self.out_logprobs)
            saved = [tensor.clone() for tensor in state]
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):  # warm up: libraries initialise in the first call
                self._decode(size, span)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self._decode(size, span)
            for tensor, before in zip(state, saved):
                tensor.copy_(before)
            self.captured[size, span] = graph
        return self.captured[size, span]

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
        x_N_E = embedding_V_D[ids_B_T.view(-1)]
        cos, sin = self.cos[place_B_T].view(B * T, 1, D), self.sin[place_B_T].view(B * T, 1, D)
        # heads that share keys become further queries of one head, so keys are not repeated
        visible_B_T_S = self.places[:span] <= place_B_T[:, :, None]
        mask_B_T_S = torch.where(visible_B_T_S, 0.0, float("-inf")).to(self.dtype)
        mask = mask_B_T_S[:, None, None].expand(B, 1, H // K, T, span)
        mask = mask.reshape(B, 1, H // K * T, span)
        rows = self.rows[:B] if rows_B is None else rows_B
        where_N = (rows[:, None] * self.context + place_B_T).view(-1)
        for cache in self.cache:
            a_norm, qkv, out, m_norm, gate_up, down = (next(weights) for _ in range(6))
            h = functional.linear(
                functional.rms_norm(x_N_E, a_norm.shape, a_norm, self.epsilon), qkv
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


def _settle(request: _Request, outcome: Generation | Exception) -> None:
    def settle() -> None:
        if request.future.done():
            return
        if isinstance(outcome, Exception):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)

    with suppress(RuntimeError):  # the event loop was closed
        request.loop.call_soon_threadsafe(settle)


def _check(prompt_ids: Sequence[int], sampling: Sampling, context: int) -> None:
    if not prompt_ids:
        raise PolicyError("a prompt has no ids; expected at least one")
    if len(prompt_ids) >= context - 1:
        raise PolicyError(
            f"a prompt of {len(prompt_ids)} ids leaves no room in a context of {context}; "
            "set Limits(max_context=)"
        )
    if sampling.top_k or sampling.top_p != 1.0 or sampling.stop or sampling.seed is not None:
        raise ConfigError("this engine does not support top_k, top_p, stop and seed")
