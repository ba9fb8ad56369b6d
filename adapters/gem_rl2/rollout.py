"""Rollout: gem's episodes in RL2's rollout, generated on its router of SGLang servers. No episode waits for another.

RL2 calls `Rollout.rollout(data, train)` for one episode's tensors and shows an environment only the text of an action. So that
method is overridden. Everything else is RL2's own: servers, router, the batch, dynamic filtering, the weight update.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import multiprocessing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import RL2.workers.rollout as rl2_rollout
from RL2.utils.logging import gather_and_log

from gem_core.adapter_kit.conformance.harness import free_port
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.settings import model_context
from gem_core.errors import EngineError, GemError
from gem_core.plugins.events import send_event
from gem_core.policies.base import warn_if_cut
from gem_core.records.file import WorkerRecords
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason, Generation, Sampling, Task
from gem_rl2.config import GemConfig
from gem_rl2.convert import generation_metrics, to_batch
from gem_rl2.ledger import Ledger, numbered

__all__ = [
    "Ask",
    "EnginePolicy",
    "Episodes",
    "GemRollout",
    "ServerError",
    "own_metrics_port",
    "play",
    "server_context",
]

Ask = Callable[[list[int], dict[str, Any]], Awaitable[Any]]
"""RL2's own request to its router: prompt ids and sampling parameters in, SGLang's answer out."""


class ServerError(GemError, ConnectionError):
    """Raised when a server of RL2's fails. It ends the run after `GemConfig(retries=...)` further attempts."""


class EnginePolicy:
    """RL2's router of SGLang servers as a policy."""

    def __init__(
        self,
        ask: Ask,
        params: Mapping[str, Any],
        updates: Callable[[], int],
        turn_end: int | None = None,
    ) -> None:
        """`params`: RL2's sampling parameters. `updates`: the number of finished updates, which is the version of the weights.
        `turn_end`: the token that ends a turn in the chat template, where it is not the model's end token."""
        self._ask, self._params, self.updates = ask, dict(params), updates
        if turn_end is not None:
            self._params["stop_token_ids"] = sorted(
                {turn_end, *(self._params.get("stop_token_ids") or ())}
            )

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """The sampled ids of one turn with SGLang's logprobs."""
        version = self.updates()
        ids, logprobs, reason = await self.request(prompt_ids, sampling.max_tokens)
        if reason == "abort":
            raise EngineError("RL2's server aborted a generation; the server's log shows why")
        return self.generation(ids, logprobs, reason, version)

    async def request(
        self, prompt_ids: Sequence[int], max_tokens: int
    ) -> tuple[list[int], list[float], str]:
        """(ids, logprobs, finish reason) of one request; SGLang's `abort` is for the caller."""
        answer = await self._ask(
            list(prompt_ids), {**self._params, "max_new_tokens": max_tokens, "no_stop_trim": True}
        )
        try:
            meta = answer["meta_info"]
            reason = meta["finish_reason"]
            tokens = (
                meta.get("output_token_logprobs") or []
            )  # may be missing where nothing was sampled
            result = (
                [int(token[1]) for token in tokens],
                [float(token[0]) for token in tokens],
                str(reason["type"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ServerError(
                f"RL2's server answered without a generation: {str(answer)[:300]}"
            ) from error
        if reason.get("status_code"):  # such as a prompt beyond the server's context
            raise EngineError(f"RL2's server rejected a request: {str(reason)[:300]}")
        if meta.get("completion_tokens") and not tokens:
            raise EngineError(
                f"RL2's server answered without logprobs and ids: {str(answer)[:300]}"
            )
        return result

    def generation(
        self, ids: Sequence[int], logprobs: Sequence[float], reason: str, version: int
    ) -> Generation:
        """The turn that began with the weights of `version`."""
        finish = (
            FinishReason.STOP
            if reason == "stop"
            else FinishReason.LENGTH
            if ids
            else FinishReason.EMPTY
        )
        return Generation(tuple(ids), tuple(logprobs), finish, versions=(version, self.updates()))


class Episodes:
    """The episodes of one config: those being played, and those whose advantages are not computed yet."""

    def __init__(self, config: GemConfig, max_context: int | None = None) -> None:
        """`max_context`: the most tokens a sequence may have in RL2."""
        self.config, self.max_context = config, max_context
        self.updates = 0
        """Finished updates."""
        self.numbers = itertools.count()
        """A new number for each episode."""
        self.ledger = Ledger()
        self.rollout = Rollout(policy_errors="raise")
        self.renderer: Renderer | None = None
        self.metrics = BatchMetrics()
        """Of the last rollout."""
        self.advantage_abs = 0.0
        """Of the last batch."""
        self._finished: list[Episode] = []
        self._records = WorkerRecords("0")

    def prepare(self, tokenizer: Any) -> Renderer:
        """The renderer; raises if the chat template cannot be rendered token-exactly."""
        if self.renderer is None:
            self.renderer = Renderer(tokenizer, template_kwargs=self.config.template_kwargs)
        return self.renderer

    @property
    def end_id(self) -> int:
        """The last id of a padding sequence."""
        return (self.renderer.turn_end if self.renderer is not None else None) or 0

    def finish(self, episode: Episode) -> None:
        """Record an episode, and count it in the next `report`."""
        self._finished.append(episode)
        self._records.write(self.config.record, [episode])

    def report(self, step: int, suffix: str) -> None:
        """Log in RL2's own log how the episodes since the last report went."""
        episodes, self._finished = self._finished, []
        if not episodes:  # on a rank that plays none
            return
        send_event("batch_end", episodes=episodes)
        self.metrics = BatchMetrics.of(episodes)
        gather_and_log(
            {f"gem/{name}/{suffix}": [value] for name, value in self.metrics.means().items()}, step
        )

    def close(self) -> None:
        """Close environments and records."""
        self.rollout.close()
        self._records.close()


async def play(
    episodes: Episodes, task: Task, policy: EnginePolicy, params: Mapping[str, Any]
) -> Episode:
    """Play one task with RL2's sampling parameters. An error of its servers ends the run; one of the environment, the episode."""
    config = episodes.config
    sampling = Sampling(
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p") or 1.0,
        top_k=max(params.get("top_k") or 0, 0),
        max_tokens=config.max_turn_tokens or params["max_new_tokens"],
    )
    warn_if_cut(sampling)
    limits = config.limits(episodes.updates, max_context=episodes.max_context)
    episode = await episodes.rollout.episode(
        task, policy=policy, renderer=episodes.renderer, sampling=sampling, limits=limits
    )
    episodes.finish(episode)
    return episode


class GemRollout(rl2_rollout.Rollout):
    """RL2's rollout with gem's episodes."""

    def __init__(self, settings: Any, config: GemConfig, max_context: int | None = None) -> None:
        """`settings`: the section `rollout`. `max_context`: the most tokens a sequence may have in the loss."""
        from RL2.utils import sglang

        self.episodes = Episodes(
            config,
            min(filter(None, (max_context, server_context(settings.server_args))), default=None),
        )
        before = set(multiprocessing.active_children())
        try:
            with patched(sglang, "RouterArgs", own_metrics_port(sglang.RouterArgs)):
                super().__init__(settings)
            if hasattr(self, "tokenizer"):  # on the rank that plays
                self.episodes.prepare(self.tokenizer)
        except BaseException:
            _terminate(set(multiprocessing.active_children()) - before)
            raise
        self._processes = set(multiprocessing.active_children()) - before
        self._loop = asyncio.new_event_loop()

    def prepare_environment(self) -> None:
        """There is no environment file."""

    def __call__(self, data_list: Any, train: bool, step: int) -> Any:
        self.episodes.updates = step - 1 if train else step
        asyncio.set_event_loop(self._loop)  # RL2 takes the thread's own, which need not exist

        def log(metrics: dict[str, list[Any]], step: int) -> None:
            gather_and_log(
                {name: values for name, values in metrics.items() if values}, step
            )  # RL2 divides by their number

        with patched(rl2_rollout, "gather_and_log", log, "metrics step device_mesh metrics_to_sum"):
            batch = super().__call__(data_list, train, step)
        self.episodes.report(step, "train" if train else "test")
        return batch

    async def rollout(self, data: Any, train: bool) -> tuple[list[Any], dict[str, list[Any]]]:
        """One episode: the tensors of its sequences, and RL2's own metrics. RL2 logs the names of the first episode, so each
        one has them all."""
        episodes = self.episodes
        number = next(episodes.numbers)
        episode = await self.episode(episodes.config.task_of(data, number), train)
        if train:
            episodes.ledger.add(number, episode)
        tensors = [
            rl2_rollout.state_dict_to_tensor_dict(sequence)
            for sequence in to_batch(episode, episodes.end_id)
        ]
        metrics = generation_metrics(episode)
        metrics["n_turns"] = [] if episode.failed else [len(episode.turns)]
        metrics["scores"] = [] if episode.failed else [episode.total_reward]
        return numbered(number, tensors), metrics

    async def episode(self, task: Task, train: bool) -> Episode:
        """Play one task."""
        episodes, params = (
            self.episodes,
            self.train_sampling_params if train else self.test_sampling_params,
        )
        policy = EnginePolicy(
            self._ask, params, lambda: episodes.updates, episodes.prepare(self.tokenizer).turn_end
        )
        return await play(episodes, task, policy, params)

    async def _ask(self, ids: list[int], params: dict[str, Any]) -> Any:
        return await rl2_rollout.async_generate(self.router_url, ids, params)

    def close(self) -> None:
        """End the server and the router of this process, which RL2 leaves running, so the program could not end."""
        self._loop.run_until_complete(self._rest())
        self._loop.close()
        self.episodes.close()
        _terminate(self._processes)

    async def _rest(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}  # left after Ctrl-C
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.episodes.rollout.pool.rest()


GemRollout.__name__ = (
    "Rollout"  # by this name RL2 recognises, when it resumes, the worker whose weights to update
)


def own_metrics_port(router_args: Callable[..., Any]) -> Callable[..., Any]:
    """RL2's router with metrics on a free port: on the default one, a second run on a machine could not start."""
    if "prometheus_port" not in inspect.signature(router_args).parameters:
        return router_args
    return partial(router_args, prometheus_host="127.0.0.1", prometheus_port=free_port())


def server_context(server_args: Any) -> int | None:
    """The most tokens the servers take: their setting, or the model's limit."""
    from transformers import AutoConfig

    if server_args.get("context_length"):
        return int(server_args.context_length)
    return model_context(
        AutoConfig.from_pretrained(server_args.model_path, trust_remote_code=True)
    )  # as RL2 loads it


def _terminate(processes: Any) -> None:
    """End processes for which Python would wait at exit."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
