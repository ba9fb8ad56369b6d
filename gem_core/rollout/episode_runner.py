"""Episode runner: plays one episode turn by turn, until it ends or fails."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from inspect import isawaitable
from operator import index
from typing import Any, cast

from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.registry import wrappers_of
from gem_core.errors import ContractError, EngineError, EnvDiedError, PolicyError
from gem_core.plugins.events import send_event
from gem_core.policies.base import ChatPolicy, Player, Policy
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Added, Conversation, Renderer
from gem_core.types import (
    Context,
    Episode,
    Failure,
    FinishReason,
    Generation,
    Message,
    Sampling,
    StopReason,
    Task,
    Turn,
    TurnStatus,
)

__all__ = ["EpisodeRunner"]

_FOR_THE_ENGINE = frozenset({"context", "suffix", "system", "role"})


class _Broken(Exception):
    """Something failed for good: the stop reason it becomes, and the failure as data."""

    def __init__(self, stop: StopReason, failure: Failure) -> None:
        super().__init__(str(failure))
        self.stop, self.failure = stop, failure


class _StartOver(Exception):
    """A replay did not lead to where the episode stood, so it is played anew."""


class EpisodeRunner:
    """One task being played with a policy. `run` returns its episode; cancelling `run` leaves `cut_short` to ask."""

    def __init__(
        self,
        task: Task,
        policy: Policy | ChatPolicy | Player,
        renderer: Renderer | None,
        sampling: Sampling,
        limits: Limits,
        pool: EnvPool,
    ) -> None:
        self.task, self.policy, self.sampling, self.limits, self.pool = (
            task,
            policy,
            sampling,
            limits,
            pool,
        )
        self.renderer = renderer if isinstance(policy, Policy) else None
        self.seed = secrets.randbits(32) if task.seed is None else task.seed
        self.attempts = 1
        self.engine_error: Exception | None = None
        """What the policy's engine raised, if that ended the episode."""
        self._began = time.monotonic()
        self._env: Env | None = None
        self._clear()

    def _clear(self) -> None:
        self._turns: list[Turn] = []
        self._asked: Turn | None = None
        """The turn whose action the environment has not answered yet."""
        self._actions: list[str] = []
        self._observed: list[str] = []
        self._info: dict[str, Any] = {}
        self._sampled = 0
        self._row_prompt = 0
        self._component = ""
        self._conversation = Conversation(self.renderer) if self.renderer is not None else None
        self._messages: list[Message] = []

    async def run(self) -> Episode:
        """Plays to the end, whatever the end is."""
        send_event("episode_start", task=self.task, seed=self.seed)
        failure: Failure | None = None
        try:
            while True:
                try:
                    stop = await self._play()
                    break
                except _StartOver:
                    self.pool.drop(self._take_env())
                    self._clear()
            self.pool.give(self.task, self._take_env())
        except _Broken as broken:
            stop, failure = broken.stop, broken.failure
            if stop is StopReason.POLICY_ERROR and failure.where == "generate":
                self.engine_error = _engine_error(broken.__cause__)
        finally:
            if self._env is not None:
                self.pool.drop(self._take_env())
        return self._finish(stop, failure)

    def cut_short(self) -> Episode:
        """The episode of a play that was cancelled."""
        return self._finish(
            StopReason.CANCELLED, Failure("CancelledError", "the run was stopped", "episode")
        )

    def _finish(self, stop: StopReason, failure: Failure | None) -> Episode:
        if stop.failed and self._asked is not None:
            self._turns.append(replace(self._asked, status=TurnStatus.FAILED))
            send_event(
                "turn_end", task=self.task, number=len(self._turns) - 1, turn=self._turns[-1]
            )
        episode = Episode(
            env_id=self.task.env_id,
            seed=self.seed,
            turns=tuple(self._turns),
            stop=stop,
            options=dict(self.task.options),
            wrappers=wrappers_of(self.task),
            component=self._component,
            final_observation=self._observed[-1] if self._observed else "",
            final_info=_kept(self._info),
            failure=failure,
            trainable=self.renderer is not None,
            index=self.task.index,
            attempts=self.attempts,
            seconds=time.monotonic() - self._began,
            env_kwargs=dict(self.task.env_kwargs),
        )
        send_event("episode_end", episode=episode)
        return episode

    async def _play(self) -> StopReason:
        observation, info = await self._reset()
        while True:
            added = self._show(observation, info)
            room, full = self._room(added)
            if room is not None and room < 1:
                return full
            sampling = self._next_sampling(room)
            await asyncio.sleep(
                0
            )  # where nobody waits for anything, other episodes and Ctrl-C must still have their turn
            generation, action = await self._generate(observation, sampling)
            turn = self._asked = self._asked_turn(added, generation, action, sampling)
            observation, reward, terminated, truncated, info = await self._step(action)
            self._asked = None
            self._turns.append(replace(turn, reward=reward, info=_kept(info)))
            self._actions.append(action)
            send_event(
                "turn_end", task=self.task, number=len(self._turns) - 1, turn=self._turns[-1]
            )
            if terminated or truncated:
                return StopReason.TERMINATED if terminated else StopReason.TRUNCATED
            if generation.finish is FinishReason.LENGTH and self.limits.on_cut == "end":
                return StopReason.GENERATION_CUT
            if self.limits.max_turns is not None and len(self._turns) >= self.limits.max_turns:
                return StopReason.TURN_LIMIT

    # The environment's side.

    async def _reset(self) -> ResetResult:
        while True:
            try:
                self._env = await self._within("make", self.limits.make_deadline, self._take)
                observation, info = await self._within(
                    "reset",
                    self.limits.step_deadline,
                    self._env.reset,
                    seed=self.seed,
                    options=dict(self.task.options),
                )
                break
            except _Broken as broken:
                self._try_again(broken)
        self._observed, self._info = [observation], info
        self._component = str(info.get("env_id", ""))
        return observation, info

    async def _step(self, action: str) -> StepResult:
        while True:
            try:
                assert self._env is not None
                result: StepResult = await self._within(
                    "step", self.limits.step_deadline, self._env.step, action
                )
                self._observed.append(result[0])
                self._info = result[4]
                return result
            except _Broken as broken:
                self._try_again(broken)
                await self._replay()

    async def _replay(self) -> None:
        """Brings a new environment to where the episode stood, or starts over where that cannot be had."""
        seen, actions = self._observed, list(self._actions)
        observation, _ = await self._reset()
        replayed = [observation]
        env = self._env
        assert env is not None
        for action in actions:
            if replayed[-1] != seen[len(replayed) - 1] or env.ended:
                raise _StartOver
            try:
                result: StepResult = await self._within(
                    "step", self.limits.step_deadline, env.step, action
                )
            except _Broken as broken:
                self._try_again(broken)
                self._observed = seen
                return await self._replay()
            replayed.append(result[0])
        if replayed != seen or env.ended:
            raise _StartOver
        self._observed = replayed
        return None

    def _try_again(self, broken: _Broken) -> None:
        """Lets go of a broken environment, and raises if the episode has no attempt left."""
        if self._env is not None:
            self.pool.drop(self._take_env())
        if self.attempts > self.limits.retries or broken.stop is StopReason.EPISODE_DEADLINE:
            raise broken
        self.attempts += 1

    def _take(self) -> Env | Awaitable[Env]:
        made = self.pool.take(self.task, fresh=self.attempts > 1)
        return self._keep(made) if isawaitable(made) else made

    async def _keep(self, made: Awaitable[Env]) -> Env:
        """At once, so that an episode whose time is up in the very moment its environment is there does not lose it."""
        self._env = await made
        return self._env

    def _take_env(self) -> Env:
        env, self._env = self._env, None
        assert env is not None
        return env

    # The model's side.

    def _show(self, observation: str, info: Mapping[str, Any]) -> Added:
        """The next prompt: the observation behind what was said so far, or what a wrapper puts in its place."""
        context = info.get("context")
        first = not self._turns
        if context is not None:
            if not isinstance(context, Context):
                said = f"info['context'] is {type(context).__name__}; it must be a gem_core.Context"
                raise _Broken(StopReason.ENV_INVALID, Failure("ContractError", said, "step"))
            messages = list(context.messages)
        else:
            suffix = info.get("suffix")
            line_end = "" if observation.endswith("\n") else "\n"
            content = f"{observation}{line_end}{suffix}" if suffix else observation
            messages = [Message(info.get("role", "user"), content)]
            if first and info.get("system"):
                messages.insert(0, Message("system", info["system"]))
        rewritten = context is not None and not first
        self._new = messages
        if self._conversation is None:
            self._messages = list(messages) if rewritten else [*self._messages, *messages]
            return Added((), rewritten or first)
        try:
            if first:
                return self._conversation.begin(messages)
            return (
                self._conversation.rewrite(messages)
                if rewritten
                else self._conversation.say(messages)
            )
        except Exception as error:
            raise _broken(StopReason.POLICY_ERROR, error, "render") from error

    def _room(self, added: Added) -> tuple[int | None, StopReason]:
        """How many tokens may still be sampled, and what it means when there are none."""
        left: list[tuple[int, StopReason]] = []
        if self._conversation is not None:
            length = len(self._conversation.ids)
            if added.restarted:
                self._row_prompt = length  # a rewritten context begins a new row
            if self.limits.max_context is not None:
                left.append((self.limits.max_context - length, StopReason.CONTEXT_FULL))
            if self.limits.max_response is not None:
                left.append(
                    (
                        self.limits.max_response - (length - self._row_prompt),
                        StopReason.CONTEXT_FULL,
                    )
                )
        if self.limits.max_tokens is not None:
            left.append((self.limits.max_tokens - self._sampled, StopReason.TOKEN_LIMIT))
        return min(left, key=lambda pair: pair[0]) if left else (None, StopReason.CONTEXT_FULL)

    async def _generate(self, observation: str, sampling: Sampling) -> tuple[Generation, str]:
        while True:
            try:
                generation, action = await self._within(
                    "generate", self.limits.generate_deadline, self._ask, observation, sampling
                )
                break
            except _Broken as broken:
                if (
                    broken.stop is StopReason.ENV_ERROR
                ):  # a player looked into an environment that had died
                    self._try_again(broken)
                    await self._replay()
                    continue
                if self.attempts > self.limits.retries or not self._may_ask_again(broken):
                    raise
                self.attempts += 1
        self._sampled += len(generation.ids) or generation.tokens or 0
        if self._conversation is not None:
            self._conversation.act(generation.ids, action)
        else:
            self._messages.append(Message("assistant", action))
        return generation, action

    def _may_ask_again(self, broken: _Broken) -> bool:
        """Whether another attempt could help: not after the episode's deadline, nor with an engine that is broken for good."""
        if broken.stop is StopReason.EPISODE_DEADLINE or isinstance(broken.__cause__, EngineError):
            return False
        return _engine_error(broken.__cause__) is None or bool(getattr(self.policy, "retry", True))

    async def _ask(self, observation: str, sampling: Sampling) -> tuple[Generation, str]:
        policy = self.policy
        if self._conversation is not None:
            prompt = list(
                self._conversation.ids
            )  # a copy: what the policy does with it must not reach the episode
            generation = _checked(await cast(Policy, policy).generate(prompt, sampling), sampling)
            assert self.renderer is not None
            return generation, self.renderer.decode(generation.ids)
        if isinstance(policy, Player):
            assert self._env is not None
            chosen = policy.act(self._env, observation)
            if isawaitable(chosen):
                chosen = await chosen
            if not isinstance(chosen, str):
                raise PolicyError(
                    f"act() returned {type(chosen).__name__} {chosen!r:.80}; an action is a string"
                )
            return Generation((), None, FinishReason.STOP, chosen), chosen
        generation = await cast(ChatPolicy, policy).chat(list(self._messages), sampling)
        if not isinstance(generation, Generation) or not isinstance(generation.text, str):
            raise PolicyError(
                f"chat() returned {generation!r}; it must return a Generation with a text"
            )
        return generation, generation.text

    def _next_sampling(self, room: int | None) -> Sampling:
        """The settings of the next turn: within the room there is and, where they have a seed, with one that episode and turn
        decide. One seed for all would make every sample from a start the same."""
        sampling = self.sampling
        if room is not None and room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        if sampling.seed is not None:
            chances = random.Random(
                f"{sampling.seed}/{self.seed}/{self.task.index}/{len(self._turns)}"
            )
            sampling = replace(sampling, seed=chances.getrandbits(31))
        return sampling

    def _asked_turn(
        self, added: Added, generation: Generation, action: str, sampling: Sampling
    ) -> Turn:
        status, finish = TurnStatus.VALID, generation.finish
        if self._conversation is not None and not generation.ids:
            status, finish = (
                TurnStatus.MASKED,
                FinishReason.EMPTY,
            )  # nothing was sampled, so there is nothing to train
        elif finish is FinishReason.LENGTH and self.limits.on_cut == "mask":
            status = TurnStatus.MASKED
        return Turn(
            messages=tuple(self._new),
            action=action,
            reward=None,
            added_ids=added.ids,
            restarted=added.restarted,
            action_ids=generation.ids,
            logprobs=generation.logprobs,
            status=status,
            finish=finish,
            sampling=sampling,
            versions=generation.versions,
            tokens=generation.tokens,
        )

    # Both.

    async def _within(
        self, where: str, seconds: float | None, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """`call(...)`, awaited if it has to be, within its deadline and the episode's; what it raises becomes data."""
        asking = where == "generate"
        overdue = StopReason.POLICY_DEADLINE if asking else StopReason.ENV_DEADLINE
        if self.limits.episode_deadline is not None:
            left = self._began + self.limits.episode_deadline - time.monotonic()
            if seconds is None or left < seconds:
                seconds, overdue = left, StopReason.EPISODE_DEADLINE
            if left <= 0:
                raise _Broken(
                    overdue,
                    Failure(
                        "DeadlineError",
                        f"the episode took over {self.limits.episode_deadline} s",
                        where,
                    ),
                )
        try:
            value = call(*args, **kwargs)
            if type(value) is tuple or not isawaitable(
                value
            ):  # the first test is the common case, and 20 times faster
                return value
            if seconds is None:
                return await _contained(value)
            waiting = asyncio.ensure_future(_contained(value))
            try:
                done, _ = await asyncio.wait({waiting}, timeout=seconds)
            finally:
                waiting.cancel()  # without effect on one that is done
            if done:
                return waiting.result()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _cancelled_from_outside():
                raise
            stop = (
                StopReason.ENV_INVALID if isinstance(error, ContractError) else StopReason.ENV_ERROR
            )
            if asking and not isinstance(error, EnvDiedError):
                stop = StopReason.POLICY_ERROR
            raise _broken(stop, error, where) from error
        raise _Broken(
            overdue, Failure("DeadlineError", f"{where} took over {seconds:.3g} s", where)
        )


def _kept(info: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in info.items() if k not in _FOR_THE_ENGINE}


def _broken(stop: StopReason, error: BaseException, where: str) -> _Broken:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _Broken(stop, Failure(type(error).__name__, str(error), where, text))


def _engine_error(error: BaseException | None) -> Exception | None:
    """The engine's own error: what a policy raised, unless it is a `PolicyError` about one generation."""
    if isinstance(error, PolicyError) and not isinstance(error, EngineError):
        return _engine_error(error.__cause__)  # a batching policy wraps what its engine raised
    return error if isinstance(error, Exception) else None


async def _contained(value: Awaitable[Any]) -> Any:
    """What `value` gives. An exit in it ends a step, not the program, which asyncio would let it do."""
    try:
        return await value
    except SystemExit as error:
        raise RuntimeError(f"SystemExit was raised: {error}") from error


def _cancelled_from_outside() -> bool:
    """Whether this very task is being cancelled, and not something it waits for. Python 3.10 cannot tell: there, yes."""
    task: Any = asyncio.current_task()
    return not hasattr(task, "cancelling") or task.cancelling() > 0


def _checked(generation: Generation, sampling: Sampling) -> Generation:
    """A generation that keeps the contract, or an error that says which part of it was broken."""
    if not isinstance(generation, Generation):
        raise PolicyError(
            f"generate() returned {type(generation).__name__}; it must return a Generation"
        )
    ids, logprobs = generation.ids, generation.logprobs
    if len(ids) > sampling.max_tokens:
        raise PolicyError(
            f"generate() returned {len(ids)} ids; it was asked for {sampling.max_tokens} at most"
        )
    try:
        ids = tuple(map(index, ids))
    except TypeError:
        raise PolicyError(
            f"generate() returned ids that are not whole numbers: {ids!r:.80}"
        ) from None
    if min(ids, default=0) < 0:
        raise PolicyError(f"generate() returned the id {min(ids)}; an id is 0 or more")
    if logprobs is not None and len(logprobs) != len(ids):
        raise PolicyError(
            f"generate() returned {len(ids)} ids and {len(logprobs)} logprobs; each id needs its own"
        )
    if logprobs is not None and not all(math.isfinite(p) for p in logprobs):
        raise PolicyError("generate() returned a logprob that is not finite")
    return replace(
        generation, ids=ids, logprobs=None if logprobs is None else tuple(map(float, logprobs))
    )
