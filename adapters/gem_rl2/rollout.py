"""Rollout: plays episodes on RL2's own SGLang router, inside RL2's rollout.

RL2 builds the tensors of one episode in `Rollout.rollout(data, train)`, which shows an environment
only the text of an action. gem overrides that method. Everything else is RL2's own code: servers,
router, batch, dynamic filtering, weight update.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import RL2.workers.rollout as rl2_rollout
from RL2.utils.logging import gather_and_log

from gem_core.adapter_kit.batch import as_evaluated
from gem_core.adapter_kit.engine import generation_of
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.ports import free_port
from gem_core.adapter_kit.settings import model_context
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.errors import EngineError, GemError
from gem_core.plugins.events import send_event
from gem_core.policies.base import warn_if_cut
from gem_core.records.file import WorkerRecords
from gem_core.rollout.interrupt import SECONDS_TO_CANCEL
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, Generation, Sampling, Task
from gem_rl2.config import GemConfig
from gem_rl2.convert import generation_metrics, to_batch
from gem_rl2.ledger import Ledger, numbered

__all__ = [
    "Ask",
    "EnginePolicy",
    "GemRollout",
    "RolloutState",
    "ServerError",
    "own_metrics_port",
    "play",
    "server_context",
]

Ask = Callable[[list[int], dict[str, Any]], Awaitable[Any]]
"""RL2's request to its router: (prompt ids, sampling parameters) -> SGLang's response."""

_SECONDS_BETWEEN_CHECKS = 5.0
"""How often a request without a response checks that this process's server and router run."""


class ServerError(GemError, ConnectionError):
    """Raised when an RL2 server fails; it ends the run after `GemConfig(retries=...)` retries."""


class EnginePolicy:
    """RL2's SGLang router as a policy."""

    def __init__(
        self,
        ask: Ask,
        params: Mapping[str, Any],
        updates: Callable[[], int],
        turn_end: int | None = None,
    ) -> None:
        """Create the policy.

        `params`: RL2's sampling parameters. `updates`: returns the number of finished updates,
        which is the weight version. `turn_end`: the token that ends a turn in the chat template.
        """
        self._ask, self._params, self.updates = ask, dict(params), updates
        self._turn_end = turn_end
        if turn_end is not None:
            self._params["stop_token_ids"] = sorted(
                {turn_end, *(self._params.get("stop_token_ids") or ())}
            )

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Generate one turn."""
        version = self.updates()
        ids, logprobs, reason = await self.request(prompt_ids, sampling.max_tokens)
        if reason == "abort":
            raise EngineError("RL2's server aborted a generation; see the server's log")
        return self.generation(ids, logprobs, reason, version)

    async def request(
        self, prompt_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], list[float], str]:
        """Return (ids, logprobs, finish reason) of one request. The caller handles "abort"."""
        params = {**self._params, "max_new_tokens": max_tokens, "no_stop_trim": True}
        response = await self._ask(list(prompt_ids), params)
        try:
            meta = response["meta_info"]
            reason = meta["finish_reason"]
            tokens = meta.get("output_token_logprobs") or []  # missing if nothing was sampled
            result = (
                [int(token[1]) for token in tokens],
                [float(token[0]) for token in tokens],
                str(reason["type"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ServerError(
                f"RL2's server returned no generation: {str(response)[:300]}"
            ) from error
        if reason.get("status_code"):  # for example, the prompt exceeds the server's context
            raise EngineError(f"RL2's server rejected a request: {str(reason)[:300]}")
        if meta.get("completion_tokens") and not tokens:
            raise EngineError(
                "RL2's server returned no logprob for a sampled token "
                f"({str(response)[:300]}); gem_rl2 needs one for each"
            )
        return result

    def generation(
        self, ids: Sequence[int], logprobs: Sequence[float], reason: str, version: int
    ) -> Generation:
        """Return the generation of a turn. `version`: the weight version at its first token."""
        return generation_of(
            ids,
            logprobs,
            cut=reason != "stop",
            turn_end=self._turn_end,
            versions=(version, self.updates()),
        )


class RolloutState:
    """State of the episodes of one config: engine, renderer, records, ledger and metrics."""

    def __init__(self, config: GemConfig, max_context: int | None = None) -> None:
        """Create the state. `max_context`: the maximum length of a sequence in RL2."""
        self.config, self.max_context = config, max_context
        self.updates = 0
        """Number of finished updates."""
        self.numbers = itertools.count()
        """Episode numbers."""
        self.ledger = Ledger()
        self.renderer: Renderer | None = None
        self.metrics = BatchMetrics()
        """Metrics of the last rollout."""
        self.logprob_gap: Mapping[str, float] = {}
        """The difference of the server's and the actor's logprobs in the last batch."""
        self.last_values: dict[int, float] = {}
        """The critic's values at the ends of the batch's cut episodes, by episode number."""
        self._finished: dict[bool, list[Episode]] = {True: [], False: []}
        """The episodes since the last report, by whether they are for training."""
        self._records = WorkerRecords("0")
        self._start_error: Exception | None = None

    @cached_property
    def rollout(self) -> TrainerRollout:
        """The engine; `prepare` starts it, on the rank that plays."""
        return TrainerRollout(self.config)

    def prepare(self, tokenizer: Any) -> Renderer:
        """Check the chat template, start the engine, and return the renderer.

        If the engine does not start, every call raises that error: each episode calls this, and
        would otherwise try to start Ray again.
        """
        if self._start_error is not None:
            raise self._start_error
        if self.renderer is None:
            renderer = self.config.renderer(tokenizer)
            try:
                _ = self.rollout
            except Exception as error:
                self._start_error = error
                raise
            self.renderer = renderer
        return self.renderer

    @property
    def end_id(self) -> int:
        """The last token id of a padding sequence."""
        return (self.renderer.turn_end if self.renderer is not None else None) or 0

    def finish(self, episode: Episode, train: bool) -> None:
        """Count a finished episode in the next `report`, and record it if it is not trained."""
        self._finished[train].append(episode)
        if not train:
            self.record([as_evaluated(episode)])

    def record(self, episodes: Iterable[Episode]) -> None:
        """Append episodes to the record."""
        self._records.write(self.config.record, episodes)

    def report(self, step: int, suffix: str) -> None:
        """Log the metrics of the episodes since the last report with RL2's logger."""
        train = suffix == "train"
        episodes, self._finished[train] = self._finished[train], []
        if not episodes:  # on a rank that does not play
            return
        if train:
            send_event("batch_end", episodes=episodes)
        self.metrics = BatchMetrics.of(episodes)
        gather_and_log(
            {f"gem/{name}/{suffix}": [value] for name, value in self.metrics.means().items()}, step
        )

    async def rest(self) -> None:
        """Close the environments of asynchronous code, before RL2's event loop ends."""
        if "rollout" in vars(self):
            await self.rollout.pool.rest()

    def close(self) -> None:
        """Record the episodes that were not trained; close environments and record files."""
        self.record(self.ledger.drop())
        if "rollout" in vars(self):
            self.rollout.close()
        self._records.close()


async def play(
    state: RolloutState,
    task: Task,
    policy: EnginePolicy,
    params: Mapping[str, Any],
    train: bool = True,
) -> Episode:
    """Play one episode. An engine error ends the run."""
    config = state.config
    sampling = Sampling(
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p") or 1.0,
        top_k=max(params.get("top_k") or 0, 0),
        max_tokens=config.max_turn_tokens or params["max_new_tokens"],
    )
    warn_if_cut(sampling)
    limits = config.limits(state.updates, max_context=state.max_context)
    episode = await state.rollout.episode(
        task, policy=policy, renderer=state.renderer, sampling=sampling, limits=limits
    )
    state.finish(episode, train)
    return episode


class GemRollout(rl2_rollout.Rollout):
    """RL2's rollout with gem's episodes."""

    _processes: Collection[Any] = ()
    """The processes of RL2's server and router."""

    def __init__(self, settings: Any, config: GemConfig, max_context: int | None = None) -> None:
        """Start RL2's servers.

        `settings`: the section `rollout` of RL2's settings. `max_context`: the maximum length of a
        sequence in the loss.
        """
        from RL2.utils import sglang

        self.state = RolloutState(
            config,
            min(filter(None, (max_context, server_context(settings.server_args))), default=None),
        )
        before = set(multiprocessing.active_children())
        try:
            with patched(sglang, "RouterArgs", own_metrics_port(sglang.RouterArgs)):
                super().__init__(settings)
            if hasattr(self, "tokenizer"):  # only on the rank that plays
                self.state.prepare(self.tokenizer)
        except BaseException:
            _terminate(set(multiprocessing.active_children()) - before)
            raise
        self._processes = set(multiprocessing.active_children()) - before
        self._loop = asyncio.new_event_loop()

    def prepare_environment(self) -> None:
        """Load no environment file: `GemConfig` names the environment."""

    def __call__(self, data_list: Any, train: bool, step: int) -> Any:
        self.state.updates = step - 1 if train else step
        asyncio.set_event_loop(self._loop)  # RL2 uses the thread's event loop, which may not exist

        def log(metrics: dict[str, list[Any]], step: int) -> None:
            # RL2 divides by the number of values
            gather_and_log({name: values for name, values in metrics.items() if values}, step)

        with patched(rl2_rollout, "gather_and_log", log, "metrics step device_mesh metrics_to_sum"):
            batch = super().__call__(data_list, train, step)
        self.state.report(step, "train" if train else "test")
        return batch

    async def rollout(self, data: Any, train: bool) -> tuple[list[Any], dict[str, list[Any]]]:
        """Play one episode, and return the tensors of its sequences and RL2's metrics.

        Every episode has all metrics, because RL2 logs those that the first one has.
        """
        state = self.state
        number = next(state.numbers)
        episode = await self.episode(state.config.task_of(data, number), train)
        if train:
            state.ledger.add(number, episode)
        tensors = [
            rl2_rollout.state_dict_to_tensor_dict(sequence)
            for sequence in to_batch(episode, state.end_id)
        ]
        metrics = generation_metrics(episode)
        metrics["n_turns"] = [] if episode.failed else [len(episode.turns)]
        metrics["scores"] = [] if episode.failed else [episode.total_reward]
        return numbered(number, tensors), metrics

    async def episode(self, task: Task, train: bool) -> Episode:
        """Play the episode of a task."""
        state = self.state
        params = self.train_sampling_params if train else self.test_sampling_params
        turn_end = state.prepare(self.tokenizer).turn_end
        policy = EnginePolicy(self._ask, params, lambda: state.updates, turn_end)
        return await play(state, task, policy, params, train)

    async def _ask(self, ids: list[int], params: dict[str, Any]) -> Any:
        # tries again until it has a response
        request = asyncio.ensure_future(rl2_rollout.async_generate(self.router_url, ids, params))
        try:
            while not (await asyncio.wait({request}, timeout=_SECONDS_BETWEEN_CHECKS))[0]:
                self._check_processes()
        finally:
            await _cancel({request})
        return request.result()

    def _check_processes(self) -> None:
        for process in self._processes:
            if not process.is_alive():
                raise ServerError(
                    f"RL2's server or router ended with exit code {process.exitcode}; its output "
                    "above has the reason"
                )

    def close(self) -> None:
        """Close environments and record files, and end RL2's server and router processes.

        RL2 leaves them running, and Python would wait for them at exit.
        """
        unfinished = asyncio.all_tasks(self._loop)  # after Ctrl-C or an error
        for task in unfinished:
            task.cancel()  # now: those that have not started must not start
        try:
            self._loop.run_until_complete(self._rest(unfinished))
            self._loop.close()
            self.state.close()
        finally:
            _terminate(self._processes)

    async def _rest(self, unfinished: Iterable[asyncio.Task[Any]]) -> None:
        await _cancel(unfinished)
        await self.state.rest()


# when RL2 resumes, it looks for this class name to update the servers' weights
GemRollout.__name__ = "Rollout"


def own_metrics_port(router_args: Callable[..., Any]) -> Callable[..., Any]:
    """Return RL2's `RouterArgs` with a free port for metrics.

    With the default port, a second run on the same machine could not start.
    """
    if "prometheus_port" not in inspect.signature(router_args).parameters:
        return router_args
    return partial(router_args, prometheus_host="127.0.0.1", prometheus_port=free_port())


def server_context(server_args: Any) -> int | None:
    """Return the servers' context length: their setting, or the model's limit."""
    from transformers import AutoConfig

    if server_args.get("context_length"):
        return int(server_args.context_length)
    # with trust_remote_code, as RL2 loads it
    return model_context(AutoConfig.from_pretrained(server_args.model_path, trust_remote_code=True))


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they end: RL2's requests catch a cancellation, and try again."""
    pending, end = set(tasks), time.monotonic() + SECONDS_TO_CANCEL
    while pending and time.monotonic() < end:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=0.1)
        for task in done:
            if not task.cancelled():
                task.exception()  # otherwise asyncio reports it


def _terminate(processes: Any) -> None:
    """End processes; kill those that do not end within 5 seconds."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
