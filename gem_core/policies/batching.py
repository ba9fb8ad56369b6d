"""Batching: makes a policy from a blocking function that generates for many prompts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from gem_core.arguments import whole_number_or_none
from gem_core.errors import ConfigError, PolicyError
from gem_core.types import Failure, FinishReason, Generation, Sampling

__all__ = ["BatchPolicy", "cut_generation"]

_Request = tuple[list[int], Sampling, "asyncio.Future[Generation]"]


class BatchPolicy:
    """Collects concurrent requests into batches for a blocking `generate(prompts, sampling)`.

    A batch starts when every live episode waits for it (see `set_live`), when it is full, or when
    the oldest request has waited `max_wait` seconds. Requests with different sampling settings go
    into different batches, except for `max_tokens`: the batch uses the largest, and each answer is
    cut to its own, because a prefix of a sample is a sample. `where="thread"` runs the function on
    a thread while environments continue; `where="inline"` runs it on the event loop's thread, for
    engines that require it.
    """

    def __init__(
        self,
        generate: Callable[..., Sequence[Generation]],
        *,
        max_batch: int | None = None,
        max_wait: float = 0.01,
        where: Literal["thread", "inline"] = "thread",
        seeded: bool = False,
        retry: bool = True,
    ) -> None:
        """`seeded`: `generate` takes one seed per prompt as a third argument, so requests with
        different seeds share a batch. `retry`: whether `Limits.retries` applies to a call that
        raised; False for an engine in this process, which would only fail again.
        """
        if where not in ("thread", "inline"):
            raise ConfigError(f"where must be 'thread' or 'inline', got {where!r}")
        self._generate = generate
        self._max_batch = whole_number_or_none("max_batch", max_batch, 1, "no limit")
        self._max_wait = max_wait
        self._where = where
        self._seeded = seeded
        self.retry = retry
        # A cancelled run may still generate on its thread when the next run starts.
        self._engine_lock = threading.Lock()
        self._live = 0
        self.batches = 0
        """How many batches were started."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Request] = []
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def set_live(self, episodes: int) -> None:
        """Set the number of running episodes; no more requests than that can wait."""
        self._live = episodes
        self._start_if_ready()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Generate for one prompt, as part of a batch."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter_loop(loop)
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((list(prompt_ids), sampling, future))
        self._start_if_ready()
        if self._timer is None and not future.done():
            self._timer = loop.call_later(self._max_wait, self._on_timer)
        return await future

    def _enter_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move to another event loop and drop the requests of the last one."""
        if self._loop is not None and self._loop.is_running():
            raise PolicyError(
                "a BatchPolicy serves one event loop at a time, and another one is using it; "
                "create one policy per event loop"
            )
        self._loop, self._waiting, self._busy, self._timer = loop, [], False, None

    def _on_timer(self) -> None:
        self._timer = None
        self._start()

    def _start_if_ready(self) -> None:
        if self._busy or not self._is_ready():
            return
        self._waiting = [w for w in self._waiting if not w[2].done()]  # drop cancelled requests
        if self._is_ready():
            self._start()

    def _is_ready(self) -> bool:
        waiting = len(self._waiting)
        full = self._max_batch is not None and waiting >= self._max_batch
        return waiting > 0 and (full or 0 < self._live <= waiting)

    def _start(self) -> None:
        self._waiting = [w for w in self._waiting if not w[2].done()]
        if self._busy or not self._waiting:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        key = self._batch_key(self._waiting[0][1])
        batch = [w for w in self._waiting if self._batch_key(w[1]) == key][: self._max_batch]
        chosen = {id(w) for w in batch}
        self._waiting = [w for w in self._waiting if id(w) not in chosen]
        self._busy = True
        self.batches += 1
        loop = asyncio.get_running_loop()
        if self._where == "inline":
            # call_soon: let this round's other requests in before the loop blocks
            loop.call_soon(lambda: self._finish(loop, batch, *self._run(batch)))
        else:
            threading.Thread(
                target=self._work, args=(loop, batch), name="gem-generate", daemon=True
            ).start()

    def _batch_key(self, sampling: Sampling) -> Sampling:
        """A key that is equal for requests that can share a batch."""
        seed = sampling.seed if sampling.seed is None or not self._seeded else 0
        return replace(sampling, max_tokens=1, seed=seed)

    def _work(self, loop: asyncio.AbstractEventLoop, batch: list[_Request]) -> None:
        outcome = self._run(batch)
        try:
            loop.call_soon_threadsafe(self._finish, loop, batch, *outcome)
        except RuntimeError:  # the loop is closed
            return

    def _run(self, batch: list[_Request]) -> tuple[list[Generation], BaseException | None]:
        caps = [sampling.max_tokens for _, sampling, _ in batch]
        try:
            with self._engine_lock:
                prompts = [ids for ids, _, _ in batch]
                settings = replace(batch[0][1], max_tokens=max(caps))
                seeds = ([sampling.seed for _, sampling, _ in batch],) if self._seeded else ()
                generations = self._generate(prompts, settings, *seeds)
            if len(generations) != len(batch):
                raise PolicyError(
                    "generate() must return one generation per prompt, "
                    f"got {len(generations)} for {len(batch)} prompts"
                )
            # Not cut at the largest cap: the rollout rejects a generation that exceeds it.
            return [
                cut_generation(g, cap) if cap < max(caps) else g
                for g, cap in zip(generations, caps)
            ], None
        except BaseException as error:  # raised in every waiting request
            if self._where == "inline" and not isinstance(error, Exception):
                raise
            return [], error

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_Request],
        generations: list[Generation],
        error: BaseException | None,
    ) -> None:
        for i, (_, _, future) in enumerate(batch):
            if future.done():
                continue
            if error is None:
                future.set_result(generations[i])
            else:
                failure = Failure.from_error(error, "generate")
                failed = PolicyError(f"generate() failed: {failure.kind}: {failure.message}")
                failed.__cause__ = error
                future.set_exception(failed)
        if loop is not self._loop:
            return
        self._busy = False
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(self._max_wait, self._on_timer)
        self._start_if_ready()


def cut_generation(generation: Generation, cap: int) -> Generation:
    """Cut a generation to `cap` ids, as if it had been sampled with that cap."""
    if len(generation.ids) <= cap:
        return generation
    logprobs = None if generation.logprobs is None else generation.logprobs[:cap]
    return replace(
        generation,
        ids=generation.ids[:cap],
        logprobs=logprobs,
        finish=FinishReason.LENGTH,
        text=None,
    )
