"""Policies with continuous batching for small Llama and Qwen2 models in this process.

    policy = ContinuousPolicy(model, tokenizer, slots=256, context=1024)
    policies = ContinuousPolicy.for_models(models, tokenizer, slots=256, context=1024)

Every episode has a slot with the keys and values of its turns, so a turn only processes the tokens
since the last turn. Turns join and leave the running batch independently. The engine runs in the
event loop of the episodes: while the GPU computes a few decoding steps, the environments of the
finished turns step. `refresh` copies the weights of the trainer's model. `for_models` returns
policies for models of the same shape, with one engine: their turns are sampled in the same batches,
at about the speed of one model. The tests run it on a CPU.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from continuous_decoder import Decoder
from packed import check_model

from gem_core import FinishReason, Generation, Sampling
from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.transformers_policy import stop_ids_of

__all__ = ["ContinuousPolicy", "Engine"]

PATIENCE = 0.02
"""Seconds a turn may wait for others: starting one turn costs about as much as starting fifty."""


@dataclass(eq=False)
class _Request:
    ids: list[int]
    sampling: Sampling
    policy: ContinuousPolicy
    episode: asyncio.Task[Any] | None
    future: asyncio.Future[Generation]
    arrived: float
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """The cache slot of one episode."""

    row: int
    policy: ContinuousPolicy
    episode: asyncio.Task[Any] | None = None
    ids: list[int] = field(default_factory=list)
    """The tokens whose keys and values are cached."""
    request: _Request | None = None


class ContinuousPolicy:
    """Sample from a Llama or Qwen2 model, without top-k, top-p, stop strings and seeds.

    A policy is one lane of an engine, and has its own slots.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        slots: int = 256,
        context: int = 1024,
        stop_ids: Iterable[int] | None = None,
        seed: int = 0,
        engine: Engine | None = None,
    ) -> None:
        """`for_models` passes the `engine` that it shares; it has the same slots and context."""
        self._engine = engine or Engine([model], slots, context, seed)
        self.stop_ids = stop_ids_of(model, tokenizer) if stop_ids is None else frozenset(stop_ids)
        self.weight_version = 0
        self.context = context
        self.tokens = 0
        """Tokens sampled so far."""
        self._lane, lanes = len(self._engine.policies), self._decoder.lanes
        self._engine.policies.append(self)
        self._slots = [_Slot(slot * lanes + self._lane, self) for slot in range(slots)]
        self._live = 0
        self._paused = False
        self._temperature = 1.0
        """Temperature of the running turns; requests with another one wait until they end."""

    @classmethod
    def for_models(
        cls,
        models: Sequence[Any],
        tokenizer: Any,
        *,
        slots: int,
        context: int,
        stop_ids: Iterable[int] | None = None,
        seed: int = 0,
    ) -> list[ContinuousPolicy]:
        """Return a policy with `slots` slots for each model; they share an engine.

        All episodes of these policies must run in one event loop.
        """
        engine = Engine(models, slots, context, seed)
        stop_ids = None if stop_ids is None else frozenset(stop_ids)
        settings: dict[str, Any] = {"slots": slots, "context": context, "stop_ids": stop_ids}
        return [cls(model, tokenizer, engine=engine, **settings) for model in models]

    @property
    def seconds(self) -> float:
        """Seconds in which the engine sampled turns; environments may have stepped meanwhile."""
        return self._engine.seconds

    @property
    def lanes(self) -> int:
        """Number of policies that share the engine."""
        return self._decoder.lanes

    @property
    def _decoder(self) -> Decoder:
        return self._engine.decoder

    def refresh(self) -> None:
        """Copy the model's weights between two batches, and drop the cache of the old weights."""
        self._decoder.refresh(self._lane)
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
        """Seed the engine's sampling; it is reproducible if the turns arrive in the same order.

        The policies of an engine share its random numbers, so this seeds all of them.
        """
        self._decoder.generator.manual_seed(seed)

    def set_live(self, episodes: int) -> None:
        """Set the number of running episodes; the rollout engine calls this."""
        self._live = episodes

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Sample a turn."""
        _check(prompt_ids, sampling, self.context)
        future = asyncio.get_running_loop().create_future()
        episode, now = asyncio.current_task(), time.monotonic()
        self._engine.add(_Request(list(prompt_ids), sampling, self, episode, future, now))
        return await future

    def _assign(self, requests: Sequence[_Request]) -> list[_Slot]:
        """Assign free slots to waiting requests, and return these slots."""
        free = [slot for slot in self._slots if slot.request is None]
        by_episode = {
            slot.episode: slot
            for slot in free
            if slot.episode is not None and not slot.episode.done()
        }
        empty = deque(slot for slot in free if slot.episode not in by_episode)
        temperature = requests[0].sampling.temperature
        if len(free) == len(self._slots) and temperature != self._temperature:
            self._temperature = temperature
            self._decoder.set_temperature(self._lane, temperature)
        assigned: list[_Slot] = []
        for request in requests:
            slot = by_episode.get(request.episode) if request.episode is not None else None
            if request.sampling.temperature != self._temperature or (slot is None and not empty):
                continue
            if slot is None:
                slot = empty.popleft()
                slot.episode, slot.ids = request.episode, []
            slot.request = request
            assigned.append(slot)
        return assigned


class Engine:
    """Sample the turns of several policies together, with one decoder."""

    def __init__(self, models: Sequence[Any], slots: int, context: int, seed: int) -> None:
        for model in models:
            check_model(model.config)
            if _shape(model) != _shape(models[0]):
                raise ConfigError(
                    "the models of an engine must have the same shape; "
                    f"got {_shape(models[0])} and {_shape(model)}"
                )
        self.decoder = Decoder(models, slots, context, seed)
        self.policies: list[ContinuousPolicy] = []
        """A policy for each model."""
        self.seconds = 0.0
        self._waiting: deque[_Request] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, request: _Request) -> None:
        """Add a request to the queue, and start the engine if it does not run."""
        if self._task is None or self._task.done():
            self._clear()  # requests of an interrupted rollout
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._waiting.append(request)

    def _running(self) -> list[_Slot]:
        """Return the slots with a turn that is being sampled."""
        return [s for policy in self.policies for s in policy._slots if s.request is not None]

    async def _run(self) -> None:
        """Generate until no request is left."""
        await asyncio.sleep(0)  # the other episodes of a batch send their requests
        while self._waiting or self._running():
            began = time.monotonic()
            try:
                begun = self._admit()
                running = self._running()
                if not running:
                    await asyncio.sleep(0.001)
                    continue
                self.decoder.decode([s.row for s in running], max(len(s.ids) for s in running))
                await asyncio.sleep(0)
                # the environments step while the GPU works; CUDA has no awaitable
                while not self.decoder.finished():  # noqa: ASYNC110
                    await asyncio.sleep(0)
                self._read(begun, running)
            except Exception as error:  # noqa: BLE001 - the waiting requests get it
                for request in self._clear():
                    message = f"the engine failed: {type(error).__name__}: {error}"
                    _settle(request, PolicyError(message))
                if isinstance(error, torch.OutOfMemoryError):
                    torch.cuda.empty_cache()
            self.seconds += time.monotonic() - began

    def _admit(self) -> set[int]:
        """Start the waiting turns, unless there are too few and more will arrive soon.

        Returns the rows of the started turns. Cancelled turns are dropped.
        """
        self._waiting = deque(r for r in self._waiting if not r.future.done())
        waiting = [request for request in self._waiting if not request.policy._paused]
        count, running = len(waiting), sum(not s.policy._paused for s in self._running())
        live = sum(policy._live for policy in self.policies if not policy._paused)
        enough = count >= min(max(1, live // 4), live - running)
        if not count or (not enough and time.monotonic() - waiting[0].arrived < PATIENCE):
            return set()
        by_policy: dict[ContinuousPolicy, list[_Request]] = {}
        for request in waiting:
            by_policy.setdefault(request.policy, []).append(request)
        admitted = [slot for policy in by_policy for slot in policy._assign(by_policy[policy])]
        started = {slot.request for slot in admitted}
        self._waiting = deque(request for request in self._waiting if request not in started)
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
        self.decoder.prefill([slot.row for slot in slots], new, starts)

    def _read(self, begun: set[int], running: Sequence[_Slot]) -> None:
        """Read the tokens of the last steps; a turn that began has one more, from its prefill."""
        tokens, logprobs = self.decoder.read()
        for slot in running:
            if slot.request is not None:
                row, first = slot.row, 0 if slot.row in begun else 1
                _take(slot, slot.request, tokens[row][first:], logprobs[row][first:])

    def _clear(self) -> list[_Request]:
        """Remove all requests from the slots and the queue, and return them."""
        requests = list(self._waiting)
        self._waiting.clear()
        for slot in self._running():
            assert slot.request is not None
            requests.append(slot.request)
            slot.request, slot.episode, slot.ids = None, None, []
        return requests


def _take(slot: _Slot, request: _Request, tokens: list[int], logprobs: list[float]) -> None:
    """Add tokens to a turn up to its end, and finish the turn if they reach it."""
    policy, before = request.policy, len(request.sampled)
    room = min(request.sampling.max_tokens, policy.context - 1 - len(request.ids)) - before
    taken = tokens[:room]
    for i, token in enumerate(taken):
        if token in policy.stop_ids:
            taken = taken[: i + 1]  # what follows the end of a turn is discarded
            break
    request.sampled += taken
    request.logprobs += logprobs[: len(taken)]
    policy.tokens += len(taken)
    # the keys and values of the last token are not cached
    slot.ids += request.sampled[max(before - 1, 0) : -1]
    stopped = taken[-1] in policy.stop_ids
    if stopped or len(taken) == room:
        slot.request = None
        finish = FinishReason.STOP if stopped else FinishReason.LENGTH
        versions = (policy.weight_version, policy.weight_version)
        ids = tuple(request.sampled)
        _settle(request, Generation(ids, tuple(request.logprobs), finish, versions=versions))


def _shape(model: Any) -> dict[str, Any]:
    """Return what the models of an engine must have in common."""
    names = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    names += ("num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps")
    names += ("rope_parameters", "rope_theta", "rope_scaling")
    return {name: getattr(model.config, name, None) for name in names}


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
