"""Rollout: what an oat learner asks for experience. Plays without end, on the actor's own vLLM, and stands still between batches.

Episodes play on a thread of their own. Whatever they want of the actor (a generation; that a finished episode is taken) waits
in an inbox, which the actor serves while it collects, on the thread oat called it on. When the batch is full it returns, and
what is left in the inbox waits: episodes go on where they stood, with the weights oat has put in meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import asdict, fields
from itertools import count
from queue import SimpleQueue
from typing import Any

import vllm
from oat.algorithms.ppo_multiturn import PPOMultiTurnActor
from transformers import AutoConfig

from gem_core.policies.batching import BatchPolicy
from gem_core.records.file import record_of
from gem_core.rollout.caller_thread import CallersThread
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason, Generation, Message, Sampling, Task
from gem_oat.config import GemConfig, learners
from gem_oat.convert import FinishedGroups, GemTransition, filler, to_transitions

__all__ = ["SUMS", "EndlessPlay", "GemActor", "collect", "count_up", "tasks_of"]

SUMS = "gem_sums/"
"""Before the names of what an actor counted, on its way to the learner, which adds it up over all ranks."""


class GemActor(PPOMultiTurnActor):
    """Plays the environment of `args.gem`, a GemConfig."""

    def init(self, actor_id: int, save_path: str) -> None:
        """oat's own: vLLM and tokenizer; then gem's renderer, and everything that is played with."""
        super().init(actor_id, save_path)
        args, spec = self.args, self.args.gem
        self.updates = 0
        """How often weights were trained since the start; what is sampled now is sampled from that version."""
        self.number = args.group_rank * (learners(args) // args.num_groups) + actor_id
        self.renderer = Renderer(self.tokenizer, template_kwargs=spec.template_kwargs)
        self.context = args.max_model_len or _context_of(args.pretrain)
        self.groups = FinishedGroups(spec.samples)
        self.play = EndlessPlay(
            self.generate_turns,
            self.renderer,
            tasks_of(spec, args.seed, self.number, learners(args)),
            self.finished,
            sampling=Sampling(args.temperature, args.top_p, max(args.top_k, 0), args.generate_max_length),
            limits=self.limits(),
            spec=spec,
        )
        self.writer = record_of(spec.record, str(self.number)) if spec.record is not None else None

    def collect_experience(self) -> tuple[list[list[GemTransition]], dict[str, float]]:
        """One batch of exactly `rollout_batch_size_per_device` transitions."""
        size = self.args.rollout_batch_size_per_device
        self.play.rollout.limits = self.limits()  # for episodes that begin now; those in play keep theirs
        self.play.until(lambda: self.groups.waiting >= size)
        episodes = self.groups.take(size)
        batch = collect(episodes, size, self.renderer, with_critic=self.args.gem.with_critic)
        info = count_up(episodes, batch, self.updates)
        self.updates += 1
        return batch, info

    def play_held_out(self, seeds: Sequence[int]) -> dict[str, float]:
        """How episodes from these starts go, as sums; those in training stand still meanwhile."""
        args, spec = self.args, self.args.gem
        if not seeds:
            return asdict(BatchMetrics())
        sampling = Sampling(args.eval_temperature, args.eval_top_p, max(args.eval_top_k, 0), args.eval_generate_max_length)
        caller = CallersThread()
        failures: list[Exception] = []

        def generate(prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
            try:
                return self.generate_turns(prompts, sampling)
            except Exception as error:
                failures.append(error)
                raise

        policy = BatchPolicy(lambda prompts, sampling: caller.call(generate, prompts, sampling), max_wait=spec.batch_wait)
        with Rollout(
            policy, self.renderer, sampling=sampling, limits=self.limits(), concurrency=min(len(seeds), spec.concurrency)
        ) as rollout:
            episodes = caller.run(lambda: rollout.run_batch([spec.task(seed) for seed in seeds]), rollout.stop)
        if failures:  # a broken engine is no bad rollout
            raise failures[0]
        return asdict(BatchMetrics.of(episodes))

    def generate_turns(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        """One turn for each prompt, by oat's own way to its engine."""
        params = vllm.SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=sampling.max_tokens,
            logprobs=1,
            stop_token_ids=[] if self.renderer.turn_end is None else [self.renderer.turn_end],
        )
        found = []
        for request in self.generate(prompts, params):
            (answer,) = request.outputs
            ids = tuple(answer.token_ids)
            cut = FinishReason.LENGTH if answer.finish_reason == "length" else FinishReason.STOP
            logprobs = tuple(float(position[id].logprob) for id, position in zip(ids, answer.logprobs))
            found.append(Generation(ids, logprobs, cut if ids else FinishReason.EMPTY, versions=(self.updates, self.updates)))
        return found

    def finished(self, episode: Episode) -> None:
        """Takes an episode in that came to its end."""
        if self.writer is not None:
            self.writer.write(episode)
        self.groups.add(episode)

    def limits(self) -> Any:
        """What an episode that begins now may cost."""
        return self.args.gem.limits(self.updates, max_context=self.context)


class EndlessPlay:
    """A rollout without end, which advances only while somebody waits in `until`."""

    def __init__(
        self,
        generate: Callable[[list[list[int]], Sampling], list[Generation]],
        renderer: Renderer,
        tasks: Iterator[Task],
        finished: Callable[[Episode], None],
        *,
        sampling: Sampling,
        limits: Any,
        spec: GemConfig,
    ) -> None:
        self._generate, self._tasks, self._finished = generate, tasks, finished
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        policy = BatchPolicy(self._ask, max_wait=spec.batch_wait)
        self.rollout = Rollout(policy, renderer, sampling=sampling, limits=limits, concurrency=spec.concurrency)

    def until(self, enough: Callable[[], bool]) -> None:
        """Goes on playing until `enough()`. What breaks the engine, or the play itself, is raised here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gem-play", daemon=True)
            self._thread.start()
        while not enough():
            self._inbox.get()()

    def _run(self) -> None:
        try:
            asyncio.run(self._stream())
            raise RuntimeError("the tasks came to an end, and they should not")
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            self._inbox.put(lambda error=error: _raise(error))  # type: ignore[misc]

    async def _stream(self) -> None:
        async with aclosing(self.rollout.stream(self._tasks)) as ended:
            async for episode in ended:
                self._inbox.put(lambda episode=episode: self._finished(episode))  # type: ignore[misc]

    def _ask(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        answer: Future[list[Generation]] = Future()
        self._inbox.put(lambda: self._answer(answer, prompts, sampling))
        return answer.result()

    def _answer(self, answer: Future[list[Generation]], prompts: list[list[int]], sampling: Sampling) -> None:
        try:
            answer.set_result(self._generate(prompts, sampling))
        except BaseException as error:  # of the run, not of an episode: going on would train on nothing, step after step
            answer.set_exception(error)
            raise


def tasks_of(spec: GemConfig, seed: int, actor: int, actors: int) -> Iterator[Task]:
    """Each actor's share of the starts, in another order every time round, `samples` times each, without end."""
    index = count()
    for epoch in count():
        seeds = list(spec.train_seeds)
        random.Random(f"{seed} {epoch}").shuffle(seeds)  # the same on every actor, so that shares do not overlap
        for start in seeds[actor::actors]:
            for _ in range(spec.samples):
                yield spec.task(start, next(index))


def collect(episodes: Sequence[Episode], size: int, renderer: Renderer, *, with_critic: bool) -> list[list[GemTransition]]:
    """What an actor hands over: the transitions of each episode, and fillers up to the size of a batch."""
    end = renderer.turn_end or 0
    batch = [to_transitions(e, end, _cut_state(e, renderer) if with_critic else ()) for e in episodes]
    room = size - sum(map(len, batch))
    return [*batch, [filler(end) for _ in range(room)]] if room else batch


def _cut_state(episode: Episode, renderer: Renderer) -> tuple[int, ...]:
    """The prompt that would have come next. A wrapper's rewriting of the history is not repeated for it."""
    if episode.failed or episode.terminated or not episode.turns:
        return ()
    action = episode.turns[-1].action_ids
    observation = [Message("user", episode.final_observation)]
    return (*episode.prompt_ids(len(episode.turns) - 1), *action, *renderer.bridge(observation, action))


def count_up(episodes: Sequence[Episode], batch: Sequence[Sequence[GemTransition]], updates: int) -> dict[str, float]:
    """What goes into the info of every transition, where oat's collector averages it: the same numbers everywhere.

    oat's own statistics also count transitions that fill up a batch; those that can be had without them are put in their place.
    """
    played = [t for transitions in batch for t in transitions if t.episode is not None]
    metrics = BatchMetrics.of(episodes)
    older = sum(v is not None and v[0] < updates for t in played for v in [t.episode.turns[t.turn].versions])
    sums = {field.name: getattr(metrics, field.name) for field in fields(metrics)}
    sums |= {"transitions": len(played), "fillers": sum(map(len, batch)) - len(played), "older": older}
    found = {f"{SUMS}{name}": float(number) for name, number in sums.items()}
    if played:
        found["actor/num_transitions"] = float(len(played))
        found["actor/avg_reward"] = sum(t.rewards for t in played) / len(played)
        found["actor/response_tok_len"] = sum(len(t.response_ids) for t in played) / len(played)
        found["actor/generate_avg_str_len"] = sum(len(t.response) for t in played) / len(played)
    if metrics.finished:
        found["actor/mean_episode_len"] = metrics.turns / metrics.finished
        found["actor/mean_episode_return"] = metrics.returns / metrics.finished
    if metrics.judged:
        found["actor/mean_episode_success"] = metrics.successes / metrics.finished
    return found


def _context_of(pretrain: str) -> int | None:
    config = AutoConfig.from_pretrained(pretrain, trust_remote_code=True)  # as oat loads it
    length = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None


def _raise(error: BaseException) -> None:
    raise error
