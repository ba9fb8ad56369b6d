"""Policy with continuous batching for small Llama and Qwen2 models in this process.

    policy = ContinuousPolicy(model, tokenizer, slots=256, context=1024)

Every episode has a slot with the keys and values of its turns, so a turn only processes the tokens
since the last turn. Turns join and leave the running batch independently. The engine runs in the
event loop of the episodes: while the GPU computes a few decoding steps, the environments of the
finished turns step. `refresh` copies the weights of the trainer's model. The tests run it on a CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from continuous_decoder import Decoder
from packed import check_model

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
    future: asyncio.Future[Generation]
    arrived: float
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """The cache slot of one episode."""

    row: int
    episode: asyncio.Task[Any] | None = None
    ids: list[int] = field(default_factory=list)
    """The tokens whose keys and values are cached."""
    request: _Request | None = None


class ContinuousPolicy:
    """Sample from a Llama or Qwen2 model, without top-k, top-p, stop strings and seeds."""

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
        check_model(model.config)
        self.stop_ids = stop_ids_of(model, tokenizer) if stop_ids is None else frozenset(stop_ids)
        self.weight_version = 0
        self.context = context
        self.tokens = 0
        """Tokens sampled so far."""
        self.seconds = 0.0
        """Seconds in which turns were sampled; environments may have stepped at the same time."""
        self._decoder = Decoder(model, slots, context, seed)
        self._slots = [_Slot(row) for row in range(slots)]
        self._waiting: deque[_Request] = deque()
        self._engine: asyncio.Task[None] | None = None
        self._live = 0
        self._paused = False
        self._temperature = 1.0
        """Temperature of the running batch; requests with another one wait until it is empty."""

    def refresh(self) -> None:
        """Copy the model's weights between two batches, and drop the cache of the old weights."""
        self._decoder.refresh()
        self.weight_version += 1
        for slot in self._slots:
            slot.episode, slot.ids = None, []

    async def pause(self) -> None:
        """Wait for the turns that are being sampled, and start no other before `resume`.

        For new weights while episodes are in flight: every turn has one version of the weights.
        """
        self._paused = True
        futures = [slot.request.future for slot in self._slots if slot.request is not None]
        if futures:
            await asyncio.wait(futures)

    def resume(self) -> None:
        """Continue with the turns that have waited."""
        self._paused = False

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
        if self._engine is None or self._engine.done():
            for slot in self._slots:
                if slot.request is not None:  # an interrupted rollout left it behind
                    slot.request, slot.episode, slot.ids = None, None, []
            self._waiting.clear()
            self._engine = loop.create_task(self._run())
        episode, future = asyncio.current_task(), loop.create_future()
        self._waiting.append(
            _Request(list(prompt_ids), sampling, episode, future, time.monotonic())
        )
        return await future

    async def _run(self) -> None:
        """Generate until no request is left."""
        await asyncio.sleep(0)  # the other episodes of a batch send their requests
        while self._waiting or any(slot.request is not None for slot in self._slots):
            began = time.monotonic()
            try:
                begun = self._admit()
                running = [slot for slot in self._slots if slot.request is not None]
                if not running:
                    await asyncio.sleep(0.001)
                    continue
                self._decoder.decode([s.row for s in running], max(len(s.ids) for s in running))
                await asyncio.sleep(0)
                # the environments step while the GPU works; CUDA has no awaitable
                while not self._decoder.finished():  # noqa: ASYNC110
                    await asyncio.sleep(0)
                self._read(begun, running)
            except Exception as error:  # noqa: BLE001 - the waiting requests get it
                for request in self._clear():
                    message = f"the engine failed: {type(error).__name__}: {error}"
                    _settle(request, PolicyError(message))
            self.seconds += time.monotonic() - began

    def _admit(self) -> set[int]:
        """Start the waiting turns, unless there are too few and more will arrive soon.

        Returns the rows of the started turns.
        """
        if self._paused:
            return set()
        count, running = len(self._waiting), sum(s.request is not None for s in self._slots)
        enough = count >= min(max(1, self._live // 4), self._live - running)
        if not count or (not enough and time.monotonic() - self._waiting[0].arrived < PATIENCE):
            return set()
        free = [slot for slot in self._slots if slot.request is None]
        by_episode = {
            slot.episode: slot
            for slot in free
            if slot.episode is not None and not slot.episode.done()
        }
        empty = deque(slot for slot in free if slot.episode not in by_episode)
        if not running:
            self._temperature = self._waiting[0].sampling.temperature
        admitted: list[_Slot] = []
        later: deque[_Request] = deque()
        for request in self._waiting:
            slot = by_episode.get(request.episode) if request.episode is not None else None
            if request.sampling.temperature != self._temperature or (slot is None and not empty):
                later.append(request)
                continue
            if slot is None:
                slot = empty.popleft()
                slot.episode, slot.ids = request.episode, []
            slot.request = request
            admitted.append(slot)
        self._waiting = later
        self._decoder.set_temperature(self._temperature)
        # long first prompts separately from short additions
        for group in ([s for s in admitted if not s.ids], [s for s in admitted if s.ids]):
            if group:
                self._begin(group)
        return {slot.row for slot in admitted}

    def _begin(self, slots: Sequence[_Slot]) -> None:
        """Prefill the tokens of the prompts that are not cached, and sample the first tokens."""
        new, starts = [], []
        for slot in slots:
            assert slot.request is not None
            ids = slot.request.ids
            # always process the last token: sampling needs its logits
            cached = min(len(slot.ids), len(ids) - 1)
            if slot.ids[:cached] != ids[:cached]:
                cached = 0  # a rewritten history
            new.append(ids[cached:])
            starts.append(cached)
            slot.ids = list(ids)
        self._decoder.prefill([slot.row for slot in slots], new, starts)

    def _read(self, begun: set[int], running: Sequence[_Slot]) -> None:
        """Read the tokens of the last steps; a turn that began has one more, from its prefill."""
        tokens, logprobs = self._decoder.read()
        for slot in running:
            row = slot.row
            for step in range(0 if row in begun else 1, len(tokens)):
                if slot.request is None:
                    break  # what follows the end of a turn is discarded
                if step > 0:
                    slot.ids.append(slot.request.sampled[-1])
                self._take(slot, tokens[step][row], logprobs[step][row])

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

    def _clear(self) -> list[_Request]:
        """Empty all slots and the queue, and return the requests that were in them."""
        requests = [slot.request for slot in self._slots if slot.request is not None]
        requests += self._waiting
        self._waiting.clear()
        for slot in self._slots:
            slot.request, slot.episode, slot.ids = None, None, []
        return requests


def _settle(request: _Request, outcome: Generation | Exception) -> None:
    if request.future.done():
        return  # its episode was cancelled
    if isinstance(outcome, Exception):
        request.future.set_exception(outcome)
    else:
        request.future.set_result(outcome)


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
