"""Rollout: what OpenRLHF's vLLM engines call for each sample. Plays one episode on the engine that called.

One executor serves all episodes of its engine. OpenRLHF's own multi-turn executor shares one sampling object between them,
has no cap per turn and no limit on turns; here every turn has a request of its own, and gem's limits end an episode before
OpenRLHF would cut it.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from openrlhf.utils.agent import AgentExecutorBase

from gem_core.errors import ConfigError, PolicyError
from gem_core.policies.base import warn_if_cut
from gem_core.rollout.renderer import Renderer
from gem_core.rollout.stage import Stage
from gem_core.types import Episode, FinishReason, Generation, Sampling
from gem_openrlhf.config import read_label
from gem_openrlhf.convert import to_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gem_openrlhf.config import GemConfig

__all__ = ["GemAgentExecutor"]


class GemAgentExecutor(AgentExecutorBase):  # type: ignore[misc]
    """Plays whatever the labels say."""

    def __init__(self) -> None:
        self._stage = Stage()
        self._renderers: dict[str, Renderer] = {}

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
        **_: Any,
    ) -> dict[str, Any]:
        """OpenRLHF's contract: a row of the data set in, one sequence of at most `max_length` tokens out."""
        if images:
            raise ConfigError("a row of the data set has images; gem's environments speak text")
        spec, seed = read_label(label)
        renderer = self._renderer(spec, hf_tokenizer)
        engine = _Engine(llm_engine, sampling_params, renderer.turn_end)
        episode = await self._play(spec, seed, engine, renderer, max_length)
        if engine.failure is not None:  # a broken engine is no bad rollout: going on would train on nothing, step after step
            raise engine.failure
        if spec.record is not None:
            self._stage.record(spec.record, episode)
        return to_response(prompt, label, spec, episode, renderer.turn_end or 0, logprobs=sampling_params.logprobs is not None)

    async def _play(self, spec: GemConfig, seed: int, engine: _Engine, renderer: Renderer, max_length: int) -> Episode:
        limits = spec.limits(engine.step, max_context=max_length)
        sampling = engine.sampling(spec.max_turn_tokens, max_length)
        return await self._stage.play(spec.task(seed), engine, renderer, sampling, limits)

    def _renderer(self, spec: GemConfig, tokenizer: Any) -> Renderer:
        """One for each template: OpenRLHF sends a new copy of the tokenizer with every prompt."""
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        key = json.dumps([tokenizer.name_or_path, tokenizer.chat_template, dict(spec.template_kwargs)], default=str)
        if key not in self._renderers:
            renderer = Renderer(tokenizer, template_kwargs=spec.template_kwargs)
            if renderer.turn_end is None:
                raise ConfigError("the tokenizer has neither a chat template nor an end token, so that no turn would end")
            self._renderers[key] = renderer
        return self._renderers[key]


class _Engine:
    """A vLLM engine of OpenRLHF's as a policy, for one episode."""

    def __init__(self, engine: Any, params: Any, turn_end: int | None) -> None:
        self._engine = engine
        # a copy: one object serves all samples of a prompt
        self._params = copy.deepcopy(params)
        self._params.min_tokens = 0  # OpenRLHF's 1 forbids an empty turn, which is another distribution than is trained
        self._params.stop_token_ids = sorted({*(self._params.stop_token_ids or ()), *(() if turn_end is None else (turn_end,))})
        self.failure: Exception | None = None
        """What the engine raised: an error of the run, not of an episode."""

    @property
    def step(self) -> int:
        """Finished updates, as our trainer tells its engines; 0 where another trains."""
        return int(getattr(self._engine, "gem_step", 0))

    def sampling(self, max_tokens: int | None, max_length: int) -> Sampling:
        """As OpenRLHF asks, with a cap for each turn."""
        params = self._params
        cap = max_tokens or params.max_tokens or max_length
        found = Sampling(params.temperature, params.top_p, max(params.top_k or 0, 0), max_tokens=cap)
        warn_if_cut(found)
        return found

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """One turn."""
        params, began = copy.copy(self._params), self.step
        params.max_tokens = sampling.max_tokens
        try:
            found = (await self._engine.generate(list(prompt_ids), params)).outputs[0]
        except Exception as error:
            self.failure = error
            raise
        ids = tuple(found.token_ids)
        logprobs = self._logprobs(ids, found.logprobs)
        self.failure = None  # an attempt that failed was made good
        finish = FinishReason.EMPTY if not ids else FinishReason.LENGTH if found.finish_reason == "length" else FinishReason.STOP
        return Generation(ids, logprobs, finish, versions=(began, self.step))

    def _logprobs(self, ids: tuple[int, ...], found: Any) -> tuple[float, ...] | None:
        if self._params.logprobs is None:
            return None
        if found is None or len(found) != len(ids):
            given = 0 if found is None else len(found)
            self.failure = PolicyError(f"vLLM was asked for logprobs and gave {given} for {len(ids)} ids")
            raise self.failure
        return tuple(float(at[token].logprob) for token, at in zip(ids, found))
