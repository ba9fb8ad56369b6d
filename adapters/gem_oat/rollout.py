"""Rollout: plays episodes on oat's own engine, inside a multi-turn actor.

Episodes run continuously on another thread. The actor generates for them on the thread on which oat
calls it, and returns when a batch is full. Unfinished episodes continue in the next batch, with the
new weights.
"""

from __future__ import annotations

import asyncio
import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Any

import vllm
from oat.algorithms.ppo_multiturn import PPOMultiTurnActor
from transformers import AutoConfig

from gem_core.adapter_kit.batch import as_evaluated, as_trained
from gem_core.adapter_kit.engine import generation_of, vllm_logprobs
from gem_core.adapter_kit.patching import patched
from gem_core.adapter_kit.settings import model_context
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.errors import ConfigError
from gem_core.policies.batching import BatchPolicy
from gem_core.records.file import WorkerRecords
from gem_core.rollout.caller_thread import CallersThread
from gem_core.rollout.engine import Rollout
from gem_core.rollout.limits import Limits
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, Generation, Sampling, Task
from gem_oat.checkpoint import Progress
from gem_oat.config import learners
from gem_oat.convert import GemTransition, actor_info, size_of, to_batch
from gem_oat.worker import WORKER

__all__ = ["EnginePolicy", "FinishedGroups", "GemActor", "play"]


class GemActor(PPOMultiTurnActor):
    """oat's multi-turn actor on the environment of `args.gem`, a `GemConfig`."""

    args: Any

    def init(self, actor_id: int, save_path: str) -> None:
        """Start oat's vLLM and tokenizer, and prepare the rollout."""

        def engine(**settings: Any) -> Any:
            more = self.args.gem.engine_kwargs
            return llm(**{**settings, **more, "worker_extension_cls": WORKER})

        with patched(vllm, "LLM", engine) as llm:
            super().init(actor_id, save_path)
        args, config = self.args, self.args.gem
        self.updates = 0
        """Finished updates: the version of the current weights."""
        self.number = args.group_rank * (learners(args) // args.num_groups) + actor_id
        self.context = args.max_model_len or model_context(
            AutoConfig.from_pretrained(args.pretrain, trust_remote_code=True)
        )
        self.renderer = config.renderer(self.tokenizer)
        self.engine = EnginePolicy(self)
        self.groups = FinishedGroups(config.samples)
        self.records = WorkerRecords(str(self.number))
        self.rollout = self._rollout(
            Sampling(args.temperature, args.top_p, max(args.top_k, 0), args.generate_max_length),
            self._limits(),
        )
        self.caller: CallersThread | None = None
        self._trained = Progress()
        self._delivered: list[Episode] = []
        """The episodes of the last batch, which wait for their advantages."""
        atexit.register(self.finish)

    def resume(self, updates: int, trained: Progress) -> None:
        """Continue a run after this many updates, without the episodes it has trained."""
        self.updates, self._trained = updates, trained

    def collect_experience(self) -> tuple[list[list[GemTransition]], dict[str, float]]:
        """Play until a batch has exactly `rollout_batch_size_per_device` transitions."""
        size = self.args.rollout_batch_size_per_device
        self._record(self._delivered)  # the learner has dropped them
        # for new episodes: running ones keep their limits
        self.rollout.configure(limits=self._limits())
        if self.caller is None:
            self.caller = play(
                self.rollout, self._tasks(), self.engine, self.args.gem.batch_wait, self.groups.add
            )
        self.caller.serve_until(lambda: self.groups.waiting >= size)
        self._delivered = episodes = self.groups.take(size)
        batch = to_batch(
            episodes,
            size,
            self.renderer,
            with_critic=self.args.gem.needs_values,
            max_ids=self.context,
        )
        self.updates += 1
        return batch, actor_info(episodes, batch)

    def record_trained(self, update: int, per_turn: Sequence[Sequence[float]]) -> None:
        """Record the episodes of the last batch with the advantages that the learner computed."""
        self._delivered = [
            as_trained(episode, numbers, update)
            for episode, numbers in zip(self._delivered, per_turn)
        ]
        self._record(self._delivered)

    def play_held_out(self, seeds: Sequence[int]) -> BatchMetrics:
        """Play one episode per seed and return the metrics as sums. Training episodes wait."""
        args, config = self.args, self.args.gem
        tasks = map(config.task, seeds)
        episodes: list[Episode] = []

        def finish(episode: Episode) -> None:
            episodes.append(as_evaluated(episode))
            self.records.write(config.record, episodes[-1:])

        sampling = Sampling(
            args.eval_temperature,
            args.eval_top_p,
            max(args.eval_top_k, 0),
            args.eval_generate_max_length,
        )
        # no room for a group: these episodes enter no batch
        limits = config.limits(self.updates, max_context=self.context)
        with self._rollout(sampling, limits) as rollout:
            play(rollout, tasks, self.engine, config.batch_wait, finish).wait()
        return BatchMetrics.of(episodes)

    def finish(self) -> None:
        """Stop playing, record the finished episodes that were not trained, and close the rollout.

        The learner calls it after training; if it cannot, the exit of the actor's process does.
        """
        if self.caller is not None:
            self.caller.stop()
        self._record(self._delivered)
        self._record(self.groups.take_all())
        self.records.close()
        self.rollout.close()
        atexit.unregister(self.finish)

    def _tasks(self) -> Iterator[Task]:
        config, actors = self.args.gem, learners(self.args)
        for index in count():
            if index not in self._trained:
                yield config.task_of(index, self.number, actors, self.args.seed)

    def _record(self, episodes: list[Episode]) -> None:
        self.records.write(self.args.gem.record, episodes)
        episodes.clear()

    def _rollout(self, sampling: Sampling, limits: Limits) -> Rollout:
        return TrainerRollout(
            self.args.gem,
            renderer=self.renderer,
            sampling=sampling,
            limits=limits,
            concurrency=self.args.gem.concurrency,
        )

    def _limits(self) -> Limits:
        args, config = self.args, self.args.gem
        limits: Limits = config.limits(self.updates, max_context=self.context)
        # a longer episode would not fit into a batch with the others of its group
        room = max(args.rollout_batch_size_per_device // config.samples, 1)
        return replace(limits, max_turns=min(limits.max_turns or room, room))


class EnginePolicy:
    """oat's vLLM engine as a policy, called on the actor's thread."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        """Generate one turn for each prompt."""
        version, turn_end = self.actor.updates, self.actor.renderer.turn_end
        params = vllm.SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_tokens,
            logprobs=1,
            stop_token_ids=[] if turn_end is None else [turn_end],
            detokenize=False,
        )
        # newer vLLM has no `prompt_token_ids=`, which ActorBase.generate uses
        requests = self.actor.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts], sampling_params=params, use_tqdm=False
        )
        generations = []
        for request in requests:
            (completion,) = request.outputs
            ids = tuple(completion.token_ids)
            generations.append(
                generation_of(
                    ids,
                    vllm_logprobs(ids, completion.logprobs),
                    cut=completion.finish_reason == "length",
                    turn_end=turn_end,
                    versions=(version, version),
                )
            )
        return generations


def play(
    rollout: Rollout,
    tasks: Iterable[Task],
    engine: EnginePolicy,
    batch_wait: float,
    on_episode: Callable[[Episode], None],
) -> CallersThread:
    """Start to play one episode per task on another thread. An engine error ends the run.

    The engine belongs to this thread. It and `on_episode` are called here, while this thread calls
    `serve_until` or `wait` of the result.
    """
    caller = CallersThread()
    rollout.configure(
        BatchPolicy(
            lambda prompts, sampling: caller.call(engine.generate, prompts, sampling),
            max_wait=batch_wait,
            retry=False,
        )
    )

    async def stream() -> None:
        async with aclosing(rollout.stream(tasks)) as episodes:
            async for episode in episodes:
                caller.post(on_episode, episode)

    caller.start(lambda: asyncio.run(stream()), rollout.stop)
    return caller


class FinishedGroups:
    """Queue of finished episodes, which enter a batch as whole groups.

    First in, first out: a group that does not fit into a batch is the first of the next one. No
    episode is dropped because of its length.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._incomplete: dict[int, list[Episode]] = {}
        self._complete: deque[list[Episode]] = deque()
        self.waiting = 0
        """The number of transitions of all complete groups."""

    def add(self, episode: Episode) -> None:
        """Add an episode. `samples` consecutive indices form a group."""
        number = episode.index // self.samples
        group = self._incomplete.setdefault(number, [])
        group.append(episode)
        if len(group) == self.samples:
            self._complete.append(sorted(self._incomplete.pop(number), key=lambda e: e.index))
            self.waiting += sum(map(size_of, group))

    def take(self, room: int) -> list[Episode]:
        """Return the episodes of one batch: as many groups as fit into `room` transitions."""
        episodes: list[Episode] = []
        while self._complete:
            size = sum(map(size_of, self._complete[0]))
            if size > room:
                break
            episodes += self._complete.popleft()
            room -= size
            self.waiting -= size
        if not episodes and self._complete:
            group = self._complete[0]
            raise ConfigError(
                f"{len(group)} episode(s) of {group[0].env_id} with seed {group[0].seed} have "
                f"{sum(map(size_of, group))} turns, but a batch has room for {room}; raise "
                "rollout_batch_size_per_device, or lower the horizon or the samples per seed"
            )
        return episodes

    def take_all(self) -> list[Episode]:
        """Return all finished episodes, those of incomplete groups included."""
        groups = [*self._complete, *self._incomplete.values()]
        self._complete.clear()
        self._incomplete.clear()
        self.waiting = 0
        return [episode for group in groups for episode in group]
