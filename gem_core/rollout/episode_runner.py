"""Episode runner: plays one episode turn by turn until it ends or fails."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from inspect import isawaitable, iscoroutinefunction
from operator import index
from typing import Any, cast

from gem_core.arguments import copy_containers, short
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.env.registry import wrappers_of
from gem_core.errors import ContractError, EngineError, PolicyError
from gem_core.plugins.events import send_event
from gem_core.policies.base import ChatPolicy, Player, Policy, ToolCallingPolicy
from gem_core.rollout.env_pool import EnvPool
from gem_core.rollout.guard import EpisodeFailed, Guard
from gem_core.rollout.limits import Limits
from gem_core.rollout.renderer import Added, Conversation, Renderer, message_of
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

__all__ = ["ROLES", "EpisodeRunner"]

_ENGINE_KEYS = frozenset({"context", "suffix", "system", "role", "function_calling"})
"""Keys of `info` that instruct the engine; records do not keep them."""
_KEY_TYPES = {"context": Context, "suffix": str}
_RESET_KEY_TYPES = {**_KEY_TYPES, "system": str, "function_calling": dict}
ROLES = ("user", "tool", "continuation")
_NEXT_PROMPT_KEYS = frozenset({"suffix", "role"})
"""Those that the record of a cut episode keeps: a critic bootstraps from its next prompt."""


class _Restart(Exception):
    """Restarts the episode because its actions cannot be replayed."""


class EpisodeRunner:
    """Plays one task with a policy. After cancelling `run`, call `cut_short` for the episode."""

    def __init__(
        self,
        task: Task,
        policy: Policy | ChatPolicy | Player,
        renderer: Renderer | None,
        sampling: Sampling,
        limits: Limits,
        pool: EnvPool,
    ) -> None:
        self.task, self.policy = task, policy
        self.sampling, self.limits, self.pool = sampling, limits, pool
        self.renderer = renderer if isinstance(policy, Policy) else None
        self.seed = secrets.randbits(32) if task.seed is None else index(task.seed)
        self.attempts = 1
        self.engine_error: Exception | None = None
        """The exception of the policy's engine, if it ended the episode."""
        self._guard = Guard(limits.episode_deadline)
        self._env: Env | None = None
        self._clear()

    def _clear(self) -> None:
        self._turns: list[Turn] = []
        self._pending: Turn | None = None
        """The turn whose action the environment has not answered yet."""
        self._actions: list[str] = []
        self._observations: list[str] = []
        self._info: dict[str, Any] = {}
        self._sampled = 0
        self._first_prompt = 0
        """The length of the current sequence's first prompt."""
        self._component = ""
        self._conversation = Conversation(self.renderer) if self.renderer is not None else None
        self._messages: list[Message] = []

    async def run(self) -> Episode:
        """Play until the episode ends or fails, and return it."""
        send_event("episode_start", task=self.task, seed=self.seed)
        failure: Failure | None = None
        try:
            while True:
                try:
                    stop = await self._play()
                    break
                except _Restart:
                    if self._env is not None:
                        self.pool.drop(self._take_env())
                    self._clear()
            self.pool.give(self.task, self._take_env())
        except EpisodeFailed as failed:
            stop, failure = failed.stop, failed.failure
            if stop is StopReason.POLICY_ERROR and failure.where == "generate":
                self.engine_error = _engine_error(failed.__cause__)
        finally:
            if self._env is not None:
                self.pool.drop(self._take_env())
        return self._finish(stop, failure)

    def cut_short(self) -> Episode:
        """Return the episode of a cancelled `run`."""
        failure = Failure("CancelledError", "the run was stopped", "episode")
        return self._finish(StopReason.CANCELLED, failure)

    def _finish(self, stop: StopReason, failure: Failure | None) -> Episode:
        if stop.failed and self._pending is not None:
            self._add_turn(replace(self._pending, status=TurnStatus.FAILED))
        cut = not stop.failed and stop is not StopReason.TERMINATED
        episode = Episode(
            env_id=self.task.env_id,
            seed=self.seed,
            turns=tuple(self._turns),
            stop=stop,
            options=dict(self.task.options),
            wrappers=wrappers_of(self.task),
            component=self._component,
            final_observation=self._observations[-1] if self._observations else "",
            final_info=_without_engine_keys(self._info, _NEXT_PROMPT_KEYS if cut else frozenset()),
            failure=failure,
            trainable=self.renderer is not None,
            index=self.task.index,
            attempts=self.attempts,
            seconds=self._guard.elapsed,
            env_kwargs=dict(self.task.env_kwargs),
        )
        send_event("episode_end", episode=episode)
        return episode

    def _add_turn(self, turn: Turn) -> None:
        self._turns.append(turn)
        send_event("turn_end", task=self.task, number=len(self._turns) - 1, turn=turn)

    async def _play(self) -> StopReason:
        observation, info = await self._reset()
        while True:
            added = self._extend_prompt(observation, info)
            room, stop_if_full = self._room(added)
            if room is not None and room < 1:
                return stop_if_full
            sampling = self._next_sampling(room)
            await asyncio.sleep(0)  # lets other episodes and Ctrl-C run if nothing else awaits
            generation, action = await self._generate(observation, sampling)
            turn = self._pending = self._new_turn(added, generation, action, sampling)
            observation, reward, terminated, truncated, info = await self._step(action)
            self._pending = None
            self._actions.append(action)
            self._add_turn(replace(turn, reward=reward, info=_without_engine_keys(info)))
            if terminated or truncated:
                return StopReason.TERMINATED if terminated else StopReason.TRUNCATED
            if generation.finish is FinishReason.LENGTH and self.limits.on_cut == "end":
                return StopReason.GENERATION_CUT
            if self.limits.max_turns is not None and len(self._turns) >= self.limits.max_turns:
                return StopReason.TURN_LIMIT

    # The environment.

    async def _reset(self) -> ResetResult:
        while True:
            try:
                self._env = await self._guard.call(
                    "make", self.limits.make_deadline, self._env_from_pool
                )
                observation, info = await self._guard.call(
                    "reset",
                    self.limits.step_deadline,
                    self._env.reset,
                    seed=self.seed,
                    options=dict(self.task.options),
                )
                break
            except EpisodeFailed as failed:
                self._retry_env(failed)
        info = _snapshot_of(info, "reset")
        self._observations, self._info = [observation], info
        self._component = str(info.get("env_id", ""))
        calling: dict[str, Any] = info.get("function_calling") or {}
        self._function_calling = calling if isinstance(self.policy, ToolCallingPolicy) else {}
        return observation, info

    async def _step(self, action: str) -> StepResult:
        while True:
            try:
                assert self._env is not None
                result: StepResult = await self._guard.call(
                    "step", self.limits.step_deadline, self._env.step, action
                )
                self._observations.append(result[0])
                self._info = _snapshot_of(result[4], "step")
                return (*result[:4], self._info)
            except EpisodeFailed as failed:
                self._retry_env(failed)
                await self._replay()

    async def _replay(self) -> None:
        """Repeat the episode's actions in a new environment; raise `_Restart` if it diverges.

        Also raises it for a player: its plan belongs to the old environment.
        """
        if isinstance(self.policy, Player):
            raise _Restart
        expected, actions = self._observations, list(self._actions)
        observation, _ = await self._reset()
        replayed = [observation]
        env = self._env
        assert env is not None
        for action in actions:
            if replayed[-1] != expected[len(replayed) - 1] or env.ended:
                raise _Restart
            try:
                result: StepResult = await self._guard.call(
                    "step", self.limits.step_deadline, env.step, action
                )
            except EpisodeFailed as failed:
                self._retry_env(failed)
                self._observations = expected
                return await self._replay()
            replayed.append(result[0])
        if replayed != expected or env.ended:
            raise _Restart
        self._observations = replayed
        return None

    def _retry_env(self, failed: EpisodeFailed) -> None:
        """Drop the environment and count an attempt; re-raise if no attempt is left."""
        if self._env is not None:
            self.pool.drop(self._take_env())
        if self.attempts > self.limits.retries or failed.stop is StopReason.EPISODE_DEADLINE:
            raise failed
        self.attempts += 1

    def _env_from_pool(self) -> Env | Awaitable[Env]:
        env = self.pool.take(self.task, fresh=self.attempts > 1)
        return self._store_env(env) if isawaitable(env) else env

    async def _store_env(self, making: Awaitable[Env]) -> Env:
        """Store the environment at once, so it is closed even if the deadline fires now."""
        self._env = await making
        return self._env

    def _take_env(self) -> Env:
        env, self._env = self._env, None
        assert env is not None
        return env

    # The policy.

    def _extend_prompt(self, observation: str, info: Mapping[str, Any]) -> Added:
        """Extend the prompt by the observation, or replace it by a wrapper's `info["context"]`."""
        context = info.get("context")
        first = not self._turns
        if context is not None:
            messages = list(context.messages)
        else:
            messages = [message_of(observation, info)]
            if first and info.get("system"):
                messages.insert(0, Message("system", info["system"]))
        for text, brief in self._function_calling.get("instructions", {}).items():
            messages = [replace(m, content=m.content.replace(text, brief)) for m in messages]
        rewritten = context is not None and not first
        if self._conversation is None:
            self._messages = list(messages) if rewritten else [*self._messages, *messages]
            return Added((), rewritten or first, tuple(messages))
        try:
            if first:
                return self._conversation.begin(messages)
            if rewritten:
                return self._conversation.rewrite(messages)
            return self._conversation.say(messages)
        except Exception as error:
            raise EpisodeFailed.from_error(StopReason.POLICY_ERROR, error, "render") from error

    def _room(self, added: Added) -> tuple[int | None, StopReason]:
        """Return how many tokens may still be sampled, and the stop reason if that is none."""
        limits = self.limits
        rooms: list[tuple[int, StopReason]] = []
        if self._conversation is not None:
            length = len(self._conversation.ids)
            if added.restarted:
                self._first_prompt = length  # a rewritten context starts a new sequence
            if limits.max_context is not None:
                rooms.append((limits.max_context - length, StopReason.CONTEXT_FULL))
            if limits.max_response is not None:
                response = length - self._first_prompt
                rooms.append((limits.max_response - response, StopReason.CONTEXT_FULL))
        if limits.max_tokens is not None:
            rooms.append((limits.max_tokens - self._sampled, StopReason.TOKEN_LIMIT))
        return min(rooms, key=lambda pair: pair[0]) if rooms else (None, StopReason.CONTEXT_FULL)

    async def _generate(self, observation: str, sampling: Sampling) -> tuple[Generation, str]:
        while True:
            try:
                generation, action = await self._guard.call(
                    "generate",
                    self.limits.generate_deadline,
                    self._ask_policy,
                    observation,
                    sampling,
                )
                break
            except EpisodeFailed as failed:
                if failed.stop is StopReason.ENV_ERROR:  # a player called a dead environment
                    self._retry_env(failed)
                    await self._replay()
                    continue
                if self.attempts > self.limits.retries or not self._may_ask_again(failed):
                    raise
                self.attempts += 1
        self._sampled += len(generation.ids) or generation.tokens or 0
        if self._conversation is not None:
            self._conversation.act(generation.ids, action)
        else:
            self._messages.append(Message("assistant", action))
        return generation, action

    def _may_ask_again(self, failed: EpisodeFailed) -> bool:
        """Whether a retry can help: not after the episode's deadline or a fatal engine error."""
        cause = failed.__cause__
        if failed.stop is StopReason.EPISODE_DEADLINE or isinstance(cause, EngineError):
            return False
        return _engine_error(cause) is None or bool(getattr(self.policy, "retry", True))

    async def _ask_policy(self, observation: str, sampling: Sampling) -> tuple[Generation, str]:
        policy = self.policy
        if self._conversation is not None:
            prompt = list(self._conversation.ids)  # a copy: the policy may modify it
            generation = await cast(Policy, policy).generate(prompt, sampling)
            generation = _check_generation(generation, sampling)
            return generation, self._conversation.decode(generation.ids)
        if isinstance(policy, Player):
            assert self._env is not None
            if self._env.execution == "inline" or iscoroutinefunction(policy.act):
                action = policy.act(self._env, observation)
            else:  # a player may call the environment, which may be slow
                action = await self.pool.threads.call(policy.act, self._env, observation)
            if isawaitable(action):
                action = await action
            if not isinstance(action, str):
                raise PolicyError(
                    f"act() must return a string, got {type(action).__name__} {action!r:.80}"
                )
            return Generation((), None, FinishReason.STOP, action), action
        messages = list(self._messages)
        if tools := self._function_calling.get("tools"):
            caller = cast(ToolCallingPolicy, policy)
            generation = await caller.chat_with_tools(messages, sampling, tools)
        else:
            generation = await cast(ChatPolicy, policy).chat(messages, sampling)
        if not isinstance(generation, Generation) or not isinstance(generation.text, str):
            raise PolicyError(f"chat() must return a Generation with a text, got {generation!r}")
        return generation, generation.text

    def _next_sampling(self, room: int | None) -> Sampling:
        """Return the turn's settings: at most `room` tokens, and a seed of its own if one is set.

        With one seed for all, every episode from the same environment seed would be the same.
        """
        sampling = self.sampling
        if room is not None and room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        if sampling.seed is not None:
            key = f"{sampling.seed}/{self.seed}/{self.task.index}/{len(self._turns)}"
            sampling = replace(sampling, seed=random.Random(key).getrandbits(31))
        return sampling

    def _new_turn(
        self, added: Added, generation: Generation, action: str, sampling: Sampling
    ) -> Turn:
        status, finish = TurnStatus.VALID, generation.finish
        if self._conversation is not None and not generation.ids:  # no token to train
            status, finish = TurnStatus.MASKED, FinishReason.EMPTY
        elif finish is FinishReason.LENGTH and self.limits.on_cut == "mask":
            status = TurnStatus.MASKED
        return Turn(
            messages=added.messages,
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
            reasoning=generation.reasoning,
        )


def _without_engine_keys(
    info: Mapping[str, Any], keep: frozenset[str] = frozenset()
) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in _ENGINE_KEYS - keep}


def _snapshot_of(info: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Copy an info with its containers: the environment may change them in later steps."""
    try:
        if not _ENGINE_KEYS.isdisjoint(info):
            _check_engine_keys(info, _RESET_KEY_TYPES if where == "reset" else _KEY_TYPES)
        return {key: copy_containers(value) for key, value in info.items()}
    except Exception as error:
        raise EpisodeFailed.from_error(StopReason.ENV_INVALID, error, where) from error


def _check_engine_keys(info: Mapping[str, Any], types: Mapping[str, type]) -> None:
    for key, kind in types.items():
        if not isinstance(info.get(key), (kind, type(None))):
            raise ContractError(f"info[{key!r}] must be a {kind.__name__}, got {short(info[key])}")
    if info.get("role", "user") not in ROLES:
        raise ContractError(f"info['role'] must be one of {ROLES}, got {short(info['role'])}")


def _engine_error(error: BaseException | None) -> Exception | None:
    """Return the engine's own exception; None for a `PolicyError` about one generation."""
    if isinstance(error, PolicyError) and not isinstance(error, EngineError):
        return _engine_error(error.__cause__)  # BatchPolicy wraps its engine's exceptions
    return error if isinstance(error, Exception) else None


def _check_generation(generation: Generation, sampling: Sampling) -> Generation:
    """Return the generation with plain ids and logprobs; raise `PolicyError` if it is invalid."""
    if not isinstance(generation, Generation):
        raise PolicyError(f"generate() must return a Generation, got {type(generation).__name__}")
    ids, logprobs = generation.ids, generation.logprobs
    if len(ids) > sampling.max_tokens:
        raise PolicyError(
            f"generate() must return at most {sampling.max_tokens} ids (max_tokens), got {len(ids)}"
        )
    try:
        ids = tuple(map(index, ids))
    except TypeError:
        raise PolicyError(f"generate() must return whole numbers as ids, got {ids!r:.80}") from None
    if min(ids, default=0) < 0:
        raise PolicyError(f"generate() must return ids from 0 up, got {min(ids)}")
    if logprobs is None:
        return replace(generation, ids=ids)
    if len(logprobs) != len(ids):
        raise PolicyError(
            f"generate() must return one logprob per id, got {len(logprobs)} for {len(ids)} ids"
        )
    if not all(math.isfinite(p) for p in logprobs):
        raise PolicyError("generate() returned a logprob that is not finite")
    return replace(generation, ids=ids, logprobs=tuple(map(float, logprobs)))
