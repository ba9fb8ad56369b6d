"""Batching: `BatchPolicy` turns a blocking function over many prompts into a policy with concurrent requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from gem_core.arguments import whole_number_or_none
from gem_core.errors import ConfigError, PolicyError
from gem_core.types import FinishReason, Generation, Sampling

__all__ = ["BatchPolicy", "cut_generation"]

_Request = tuple[list[int], Sampling, "asyncio.Future[Generation]"]


class BatchPolicy:
    """Turns a blocking `generate(prompts, sampling)` for many prompts into concurrent requests.

    A batch starts when every live episode waits for it (`set_live` is told how many there are), when it is full, or when the
    oldest request has waited `max_wait` seconds. Requests with different sampling settings go into different batches, except
    for their token caps: a batch is generated up to the largest and each answer is cut to its own, since a prefix of a
    sample is a sample. `where="thread"` runs the function on a thread of its own, so that environments go on meanwhile;
    `where="inline"` runs it on the event loop's own thread, for engines that must be called from there.
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
        """`generate`: of the prompts and their sampling settings. With `seeded` it is also given the seed of each prompt, and
        requests that differ in their seeds go into one batch. `retry`: whether a call that raised may be repeated, as
        `Limits.retries` says; False for an engine in this process, which would only fail again."""
        if where not in ("thread", "inline"):
            raise ConfigError(f"where must be 'thread' or 'inline'; given: {where!r}")
        self._generate = generate
        self._max_batch = whole_number_or_none("max_batch", max_batch, 1, "no limit")
        self._max_wait = max_wait
        self._where = where
        self._seeded = seeded
        self.retry = retry
        # A run that was cut short may leave a batch generating on its thread while the next run starts.
        self._engine = threading.Lock()
        self._live = 0
        self.batches = 0
        """How many calls were made, for logs and tests."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Request] = []
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def set_live(self, episodes: int) -> None:
        """Told by the engine: no more requests than this can be waiting."""
        self._live = episodes
        self._maybe_start()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Waits for the batch this prompt goes into."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._enter(loop)
        future: asyncio.Future[Generation] = loop.create_future()
        self._waiting.append((list(prompt_ids), sampling, future))
        self._maybe_start()
        if self._timer is None and not future.done():
            self._timer = loop.call_later(self._max_wait, self._waited)
        return await future

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins anew on another event loop: what waited on the last one, or was being generated for it, is over."""
        if self._loop is not None and self._loop.is_running():
            raise PolicyError(
                "a batching policy serves one event loop at a time, and another one uses it; give each its own policy"
            )
        self._loop, self._waiting, self._busy, self._timer = loop, [], False, None

    def _waited(self) -> None:
        self._timer = None
        self._start()

    def _maybe_start(self) -> None:
        if self._busy or not self._enough():
            return
        self._waiting = [
            w for w in self._waiting if not w[2].done()
        ]  # a request that was cancelled waits no more
        if self._enough():
            self._start()

    def _enough(self) -> bool:
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
        kind = self._kind(self._waiting[0][1])
        batch = [w for w in self._waiting if self._kind(w[1]) == kind][: self._max_batch]
        chosen = {id(w) for w in batch}
        self._waiting = [w for w in self._waiting if id(w) not in chosen]
        self._busy = True
        self.batches += 1
        loop = asyncio.get_running_loop()
        if self._where == "inline":
            # call_soon: the requests of this round are all in before the loop is held up
            loop.call_soon(lambda: self._finish(loop, batch, *self._run(batch)))
        else:
            threading.Thread(
                target=self._work, args=(loop, batch), name="gem-generate", daemon=True
            ).start()

    def _kind(self, sampling: Sampling) -> Sampling:
        """What requests of one batch have in common; those with a seed are apart from those without."""
        seed = sampling.seed if sampling.seed is None or not self._seeded else 0
        return replace(sampling, max_tokens=0, seed=seed)

    def _work(self, loop: asyncio.AbstractEventLoop, batch: list[_Request]) -> None:
        outcome = self._run(batch)
        try:
            loop.call_soon_threadsafe(self._finish, loop, batch, *outcome)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            return

    def _run(self, batch: list[_Request]) -> tuple[list[Generation], BaseException | None]:
        caps = [sampling.max_tokens for _, sampling, _ in batch]
        try:
            with self._engine:
                more = ([sampling.seed for _, sampling, _ in batch],) if self._seeded else ()
                found = self._generate(
                    [ids for ids, _, _ in batch], replace(batch[0][1], max_tokens=max(caps)), *more
                )
            if len(found) != len(batch):
                raise PolicyError(
                    f"generate() was given {len(batch)} prompts and returned {len(found)} generations"
                )
            # what is longer than the engine was asked for is left as it is: the check of the rollout engine then says so
            return [
                cut_generation(g, cap) if cap < max(caps) else g for g, cap in zip(found, caps)
            ], None
        except BaseException as error:  # handed to every waiting request, never swallowed
            if self._where == "inline" and not isinstance(error, Exception):
                raise
            return [], error

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: list[_Request],
        found: list[Generation],
        error: BaseException | None,
    ) -> None:
        for i, (_, _, future) in enumerate(batch):
            if future.done():
                continue
            if error is None:
                future.set_result(found[i])
            else:
                failed = PolicyError(f"generate() failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
                future.set_exception(failed)
        if loop is not self._loop:
            return
        self._busy = False
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(self._max_wait, self._waited)
        self._maybe_start()


def cut_generation(generation: Generation, cap: int) -> Generation:
    """The first `cap` ids of a generation: what would have been sampled under that cap."""
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
