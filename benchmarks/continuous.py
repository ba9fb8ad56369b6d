"""Policy with continuous batching for small Llama models in this process.

    policy = ContinuousPolicy(model, tokenizer, slots=256, context=1024)

Every episode has a slot with the keys and values of its turns, so a turn only processes the tokens
since the last turn. Turns join and leave the running batch independently; the host reads the tokens
every few steps. `refresh` copies the weights of the trainer's model. The tests run it on a CPU.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from continuous_decoder import Decoder

from gem_core import FinishReason, Generation, Sampling
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.transformers_policy import stop_ids_of

__all__ = ["ContinuousPolicy"]

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
        self._decoder = Decoder(model, slots, context, seed)
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
        """Run a few decoding steps for all running slots."""
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
