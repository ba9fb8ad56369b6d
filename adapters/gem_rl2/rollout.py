"""Rollout: gem's episodes in RL2's rollout, generated on its router of SGLang servers, each advancing on its own.

The release asks `Rollout.rollout(data, train)` for one episode's tensors, and offers an environment only the text of an action;
so that method is overridden. The main branch asks an environment for `generate(config, tokenizer, router_url, sample)`, which is
given to it. There, generation may be paused (`partial_rollout`): an episode then waits where it is, RL2 is told that it was
aborted, and it goes on with the tokens it has when RL2 asks for it again.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import multiprocessing
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import RL2.workers.rollout as rl2_rollout
from omegaconf import OmegaConf
from RL2.utils.logging import gather_and_log

from gem_core.errors import PolicyError
from gem_core.plugins.events import send_event
from gem_core.records.file import record_of
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason, Generation, Sampling, StopReason
from gem_rl2.convert import state_dicts
from gem_rl2.interface import replaced, which_rl2
from gem_rl2.ledger import Ledger, numbered

if TYPE_CHECKING:
    from gem_rl2.config import GemConfig

__all__ = ["GemRollout", "Plays"]

Ask = Callable[[list[int], dict[str, Any]], Awaitable[dict[str, Any]]]
"""RL2's own request to its router: prompt ids and sampling parameters in, SGLang's answer out."""


class Gate:
    """Open while RL2 lets its servers generate, closed while it has paused them."""

    def __init__(self) -> None:
        self._opened, self._closed = asyncio.Event(), asyncio.Event()
        self.open()

    def open(self) -> None:
        """Generation goes on."""
        self._opened.set()
        self._closed.clear()

    def close(self) -> None:
        """No request may be sent until it opens again."""
        self._opened.clear()
        self._closed.set()

    async def opened(self) -> None:
        """Waits until requests may be sent."""
        await self._opened.wait()

    async def closed(self) -> None:
        """Waits until they may not."""
        await self._closed.wait()


class RouterPolicy:
    """RL2's router as a policy. A turn that was aborted by a pause goes on where it stood, with the weights of that time;
    without a gate there are no pauses, and an abort is an error."""

    def __init__(self, ask: Ask, params: dict[str, Any], gate: Gate | None, step: Callable[[], int]) -> None:
        self._ask, self._params, self._gate, self._step = ask, params, gate, step
        self.failure: Exception | None = None
        """What the servers last answered instead of a generation, to any episode."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """The turn's ids as sampled, with the logprobs SGLang gave them."""
        ids: list[int] = []
        logprobs: list[float] = []
        first = self._step()
        while True:
            if self._gate is not None:
                await self._gate.opened()
            asked = {**self._params, "max_new_tokens": sampling.max_tokens - len(ids), "no_stop_trim": True}
            try:
                new, their_logprobs, why = _read(await self._ask([*prompt_ids, *ids], asked))
                if why == "abort" and self._gate is None:
                    raise PolicyError("RL2's server aborted a generation that nobody had paused; its log says why")
            except Exception as error:
                self.failure = error
                raise
            ids += new
            logprobs += their_logprobs
            if why == "abort" and self._gate is not None and len(ids) < sampling.max_tokens:
                self._gate.close()
                continue
            finish = FinishReason.STOP if why == "stop" else FinishReason.LENGTH if ids else FinishReason.EMPTY
            return Generation(tuple(ids), tuple(logprobs), finish, versions=(first, self._step()))


def _read(answer: Any) -> tuple[list[int], list[float], str]:
    """(ids, logprobs, why it ended) of SGLang's answer; without tokens, the list of them may be empty or missing."""
    try:
        meta = answer["meta_info"]
        reason = meta["finish_reason"]
        tokens = meta.get("output_token_logprobs") or []
        found = [int(t[1]) for t in tokens], [float(t[0]) for t in tokens], str(reason["type"])
    except (KeyError, TypeError, IndexError) as error:
        raise PolicyError(f"RL2's server answered without a generation: {str(answer)[:300]}") from error
    if reason.get("status_code"):  # a request it refused, such as one over its context; a pause has none
        raise PolicyError(f"RL2's server refused a request: {str(reason)[:300]}")
    return found


class Plays:
    """Episodes of one spec on RL2's router, as they are asked for."""

    def __init__(self, spec: GemConfig, *, max_context: int | None = None, credited: bool = True) -> None:
        """`credited`: whether somebody will ask for the episodes, to report and to credit them."""
        self.spec, self.max_context, self.credited = spec, max_context, credited
        self.step = 0
        """Finished updates."""
        self.numbers = itertools.count()
        """One for each episode."""
        self.ledger = Ledger()
        self.finished: list[Episode] = []
        """Since somebody last looked."""
        self.gate = Gate()
        self.renderer: Renderer | None = None
        self._engine: Rollout | None = None
        self._settings = ""
        self._writer = record_of(spec.record, "0") if spec.record is not None else None
        self._going: dict[int, asyncio.Task[Episode]] = {}

    @property
    def end_id(self) -> int:
        """What a placeholder row ends with."""
        return (self.renderer.turn_end if self.renderer is not None else None) or 0

    async def episode(
        self, number: int, seed: int, tokenizer: Any, ask: Ask, params: dict[str, Any], *, pausable: bool = False
    ) -> Episode:
        """Plays one start to its end. An error of RL2's servers ends the run; one of the environment, the episode."""
        engine = self._ready(tokenizer, ask, params, pausable)
        policy = engine.policy
        episode = await engine.episode(self.spec.task(seed, number))
        assert isinstance(policy, RouterPolicy)
        if episode.stop is StopReason.POLICY_ERROR:  # in all its attempts
            raise policy.failure or PolicyError(str(episode.failure))
        if self.credited:
            self.finished.append(episode)
        if self._writer is not None:
            self._writer.write(episode)
        return episode

    async def generate(self, config: Any, tokenizer: Any, router_url: str, sample: Any) -> None:
        """What RL2's main branch asks an environment for: plays a sample to its end, or until RL2 pauses."""
        done, aborted, running = (getattr(type(sample.status), name) for name in ("DONE", "ABORTED", "RUNNING"))
        if sample.status == done:
            return
        communication = import_module("RL2.utils.communication")

        async def ask(ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
            request = {"input_ids": ids, "sampling_params": params, "return_logprob": True}
            answer: dict[str, Any] = await communication.async_request(router_url, "generate", json=request)
            return answer

        self.gate.open()  # being asked means that RL2 generates
        number = sample.sample.setdefault("gem", next(self.numbers))  # a sample is written out as JSON: no task in it
        playing = self._going.get(number)
        if playing is None:
            params = dict(OmegaConf.to_container(config.sampling_params))
            pausable = bool(config.get("partial_rollout", False))
            seed = self.spec.seed_of(sample.sample)
            playing = asyncio.ensure_future(self.episode(number, seed, tokenizer, ask, params, pausable=pausable))
            self._going[number] = playing
        sample.status = running
        paused = asyncio.ensure_future(self.gate.closed())
        try:
            await asyncio.wait({playing, paused}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            playing.cancel()
            raise
        finally:
            paused.cancel()
        if not playing.done():
            sample.status = aborted
            return
        self._going.pop(number, None)  # `rest` may have been here
        self._fill(sample, number, playing.result(), tokenizer)
        sample.status = done

    async def rest(self) -> None:
        """Called when RL2's event loop is about to end."""
        for playing in self._going.values():
            playing.cancel()
        if self._going:
            await asyncio.wait(self._going.values())
        self._going.clear()
        if self._engine is not None:
            await self._engine.pool.rest()

    def close(self) -> None:
        """Closes the environments that are kept from batch to batch."""
        if self._engine is not None:
            self._engine.close()

    def report(self, step: int, suffix: str) -> None:
        """How the episodes since the last report went, into RL2's own log."""
        episodes, self.finished = self.finished, []
        send_event("batch_end", episodes=episodes)
        found = BatchMetrics.of(episodes).means()
        gather_and_log({f"gem/{name}/{suffix}": [value] for name, value in found.items()}, step)

    def _ready(self, tokenizer: Any, ask: Ask, params: dict[str, Any], pausable: bool) -> Rollout:
        """The engine, with the settings of this step."""
        if self.renderer is None:
            self.renderer = Renderer(tokenizer, template_kwargs=self.spec.template_kwargs)
        settings = json.dumps([self.step, params, pausable], sort_keys=True, default=str)
        if self._engine is not None and settings == self._settings:
            return self._engine
        sampling = Sampling(
            temperature=params.get("temperature", 1.0),
            top_p=params.get("top_p") or 1.0,
            top_k=max(params.get("top_k") or 0, 0),
            max_tokens=self.spec.max_turn_tokens or params["max_new_tokens"],
        )
        limits = self.spec.limits(self.step, max_context=self.max_context)
        policy = RouterPolicy(ask, params, self.gate if pausable else None, lambda: self.step)
        if self._engine is None:
            self._engine = Rollout(policy, self.renderer, sampling=sampling, limits=limits, concurrency=self.spec.concurrency)
        else:
            self._engine.reuse(policy, self.renderer, sampling=sampling, limits=limits, concurrency=self.spec.concurrency)
        self._settings = settings
        return self._engine

    def _fill(self, sample: Any, number: int, episode: Episode, tokenizer: Any) -> None:
        """An episode as RL2's sample. Its `rewards` is the whole return; RL2's own sums the last turns of rows only."""
        rows = state_dicts(episode, self.end_id)
        if self.credited:
            self.ledger.add(number, episode, rows, sample)
        sample.state_dicts, sample.turn = rows, len(episode.turns)
        sample.state_text = tokenizer.decode(rows[-1]["states"], skip_special_tokens=False)
        for name, values in _metrics(episode).items():
            sample.metrics[name].extend(values)
        sample.metrics["turns"].append(len(episode.turns))
        sample.metrics["rewards"].append(episode.total_reward or 0.0)  # RL2 wants one for a failed episode too


class _Release(rl2_rollout.Rollout):  # type: ignore[misc]
    """The rollout of rl-square 0.0.2."""

    def __init__(self, config: Any, spec: GemConfig, max_context: int | None = None) -> None:
        self.plays = Plays(spec, max_context=_smaller(max_context, _context_of(config.server_args)))
        before = set(multiprocessing.active_children())
        sglang = import_module("RL2.utils.sglang")
        try:
            with replaced(sglang, "RouterArgs", _with_own_port(sglang.RouterArgs)):
                super().__init__(config)
        except BaseException:
            _terminate([p for p in multiprocessing.active_children() if p not in before])
            raise
        self._processes = [p for p in multiprocessing.active_children() if p not in before]
        self._loop = asyncio.new_event_loop()

    def prepare_environment(self) -> None:
        """There is no environment file."""

    def __call__(self, data_list: Any, train: bool, step: int) -> Any:
        self.plays.step = step - 1 if train else step
        asyncio.set_event_loop(self._loop)  # RL2 takes the thread's own, which need not be there

        def log(metrics: dict[str, list[Any]], step: int) -> None:
            gather_and_log({name: values for name, values in metrics.items() if values}, step)  # RL2 divides by their number

        with replaced(rl2_rollout, "gather_and_log", log):
            found = super().__call__(data_list, train, step)
        if self.plays.finished:  # on the rank that plays
            self.plays.report(step, "train" if train else "test")
        return found

    async def rollout(self, data: Any, train: bool) -> tuple[list[Any], dict[str, list[Any]]]:
        """One episode: its tensors, a row each, and RL2's own metrics of it, all of them: RL2 logs those the first one has."""
        from RL2.datasets import state_dict_to_tensor_dict

        params = self.train_sampling_params if train else self.test_sampling_params
        number, seed = next(self.plays.numbers), self.plays.spec.seed_of(data)
        episode = await self.plays.episode(number, seed, self.tokenizer, self._ask, params)
        rows = state_dicts(episode, self.plays.end_id)
        if train:
            self.plays.ledger.add(number, episode, rows)
        played = [] if episode.failed else [episode]
        of_episode = {"n_turns": [len(e.turns) for e in played], "scores": [e.total_reward for e in played]}
        return numbered(number, [state_dict_to_tensor_dict(row) for row in rows]), {**_metrics(episode), **of_episode}

    async def _ask(self, ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await rl2_rollout.async_generate(self.router_url, ids, params)
        return answer

    def close(self) -> None:
        """Ends the server and the router of this process, which RL2 leaves running, so that a run could not end."""
        self._loop.run_until_complete(self._rest())
        self._loop.close()
        self.plays.close()
        _terminate(self._processes)

    async def _rest(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}  # after Ctrl-C
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.plays.rest()


class _Main(rl2_rollout.Rollout):  # type: ignore[misc]
    """The rollout of RL2's main branch."""

    def __init__(self, config: Any, spec: GemConfig, max_context: int | None = None) -> None:
        self.plays = Plays(spec, max_context=_smaller(max_context, _context_of(config.server_args)))
        own_port = replaced(rl2_rollout, "RouterArgs", _with_own_port(rl2_rollout.RouterArgs))
        with own_port, replaced(rl2_rollout, "sync_request", _with_workers(rl2_rollout.sync_request)):
            super().__init__(config)

    def _prepare_environment(self) -> None:
        self.env = SimpleNamespace(generate=self.plays.generate)

    async def __call__(self, train: bool, step: int) -> Any:
        self.plays.step = step - 1 if train else step
        request = rl2_rollout.async_request

        def noticing(url: Any, endpoint: str, *args: Any, **kwargs: Any) -> Any:
            if endpoint == "pause_generation":
                self.plays.gate.close()  # whoever is in a step now must not ask a paused server, which would not answer
            return request(url, endpoint, *args, **kwargs)

        to_tensors = rl2_rollout.SampleGroup.to_all_tensor_dicts_and_metrics

        def with_numbers(group: Any) -> Any:
            of_samples, metrics = to_tensors(group)
            return [numbered(s.sample["gem"], rows) for s, rows in zip(group.samples, of_samples)], metrics

        with (
            replaced(rl2_rollout, "async_request", noticing),
            replaced(rl2_rollout.SampleGroup, to_tensors.__name__, with_numbers, "self"),
        ):
            found = await super().__call__(train, step)
        if self.plays.finished:
            self.plays.report(step, "train" if train else "test")
        return found

    def close(self) -> None:
        """RL2 ends its processes itself."""
        self.plays.close()


GemRollout: Any = _Main if which_rl2() == "main" else _Release
"""The rollout of the RL2 that is installed, with gem's episodes: `GemRollout(config.rollout, spec)`."""
GemRollout.__name__ = "Rollout"  # by this name RL2 knows, when it resumes, whose weights to renew


def _metrics(episode: Episode) -> dict[str, list[Any]]:
    """What RL2 logs of each generation."""
    turns = episode.turns
    return {
        "response_length": [len(t.action_ids) for t in turns] or [0],
        "length_clip_ratio": [t.finish is FinishReason.LENGTH for t in turns] or [False],
    }


def _with_own_port(router_args: Callable[..., Any]) -> Callable[..., Any]:
    """RL2's router with metrics on a free port: on the one all routers share, a second run on a machine could not start."""
    if "prometheus_port" not in inspect.signature(router_args).parameters:
        return router_args
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return partial(router_args, prometheus_host="127.0.0.1", prometheus_port=probe.getsockname()[1])


def _terminate(processes: Sequence[Any]) -> None:
    """Python would wait for them at its end."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()


def _with_workers(request: Callable[..., Any]) -> Callable[..., Any]:
    """RL2's requests, with a server announced as routers from 0.2.2 on take it; `add_worker` is answered 404 there."""

    def sync_request(url: str, endpoint: str, *args: Any, **kwargs: Any) -> Any:
        name, given, worker = endpoint.partition("?url=")
        if name != "add_worker" or not given:
            return request(url, endpoint, *args, **kwargs)
        answer = request(url, "workers", json={"url": worker})
        _wait_for_worker(request, url, worker)
        return answer

    return sync_request


def _wait_for_worker(request: Callable[..., Any], url: str, worker: str, seconds: float = 120.0) -> None:
    """The router takes a server in when it has seen it healthy; a request before that would fail."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        known = request(url, "workers", "GET").get("workers", [])
        if any(w.get("url") == worker and w.get("is_healthy") for w in known):
            return
        time.sleep(0.2)
    raise PolicyError(f"the router at {url} did not take in {worker} within {seconds:.0f} s")


def _context_of(server_args: Any) -> int | None:
    """The tokens the servers take: what they are told, or what the model was made for."""
    from transformers import AutoConfig

    if server_args.get("context_length"):
        return int(server_args.context_length)
    known = AutoConfig.from_pretrained(server_args.model_path, trust_remote_code=True)  # as RL2 does
    length = getattr(known.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((x for x in (one, other) if x is not None), default=None)
