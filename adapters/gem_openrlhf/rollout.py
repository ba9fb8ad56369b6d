"""Rollout: the agent executor of OpenRLHF's vLLM engines. Plays one episode per call on the engine that calls it.

One executor plays all episodes of its engine concurrently. OpenRLHF's own multi-turn executor shares one sampling object
between them, and has no cap per turn and no turn limit. Here every turn is a request with its own parameters, and gem's limits
end an episode before OpenRLHF would cut it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from gem_core.errors import ConfigError, EngineError
from gem_core.policies.base import warn_if_cut
from gem_core.records.file import WorkerRecords
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, FinishReason, Generation, Sampling
from gem_openrlhf.config import GemConfig, config_of
from gem_openrlhf.convert import to_batch

__all__ = ["EnginePolicy", "GemAgentExecutor", "play"]


class GemAgentExecutor(AgentExecutorBase):
    """Plays the task that a label carries."""

    def __init__(self) -> None:
        self._rollout = Rollout(policy_errors="raise")
        self._records = WorkerRecords()
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
        """OpenRLHF's contract: a data-set row in, one sequence of at most `max_length` tokens out."""
        if images:
            raise ConfigError(
                "a data-set row has images, and gem's environments are text only; remove them"
            )
        config = config_of(label)
        renderer = self._renderer(config, hf_tokenizer)
        engine = EnginePolicy(llm_engine, sampling_params, renderer.turn_end)
        episode = await play(self._rollout, config, label, engine, renderer, max_length)
        self._records.write(config.record, [episode])
        return to_batch(
            prompt,
            label,
            config,
            episode,
            renderer.turn_end or 0,
            logprobs=sampling_params.logprobs is not None,
        )

    def _renderer(self, config: GemConfig, tokenizer: Any) -> Renderer:
        """One per chat template: OpenRLHF sends a new copy of the tokenizer with every prompt."""
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        key = json.dumps(
            [tokenizer.name_or_path, tokenizer.chat_template, dict(config.template_kwargs)],
            default=str,
        )
        if key not in self._renderers:
            renderer = Renderer(tokenizer, template_kwargs=config.template_kwargs)
            if renderer.turn_end is None:
                raise ConfigError(
                    "the tokenizer has neither a chat template nor an end token, so no turn would end; set tokenizer.eos_token"
                )
            self._renderers[key] = renderer
        return self._renderers[key]


class EnginePolicy:
    """OpenRLHF's vLLM engine as a policy, for one episode."""

    def __init__(self, engine: Any, params: Any, turn_end: int | None) -> None:
        self.engine = engine
        self.params = copy.deepcopy(params)  # all samples of a prompt share the original
        self.params.min_tokens = (
            0  # OpenRLHF's 1 forbids an empty turn: a distribution other than the trained one
        )
        self.params.stop_token_ids = sorted(
            {*(params.stop_token_ids or ()), *(() if turn_end is None else (turn_end,))}
        )

    @property
    def step(self) -> int:
        """Finished updates, as `GemTraining` reports them to its engines; 0 with OpenRLHF's own trainer."""
        return int(getattr(self.engine, "gem_step", 0))

    def sampling(self, max_turn_tokens: int | None, max_length: int) -> Sampling:
        """OpenRLHF's sampling, with a cap per turn."""
        params = self.params
        cap = max_turn_tokens or params.max_tokens or max_length
        return Sampling(params.temperature, params.top_p, max(params.top_k or 0, 0), max_tokens=cap)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """One turn."""
        params, first_step = copy.copy(self.params), self.step
        params.max_tokens = sampling.max_tokens
        output = (await self.engine.generate(list(prompt_ids), params)).outputs[0]
        ids = tuple(output.token_ids)
        finish = (
            FinishReason.EMPTY
            if not ids
            else FinishReason.LENGTH
            if output.finish_reason == "length"
            else FinishReason.STOP
        )
        return Generation(
            ids, self._logprobs(ids, output.logprobs), finish, versions=(first_step, self.step)
        )

    def _logprobs(self, ids: tuple[int, ...], per_token: Any) -> tuple[float, ...] | None:
        if self.params.logprobs is None:
            return None
        if len(per_token or ()) != len(ids):
            raise EngineError(
                f"vLLM returned {len(per_token or ())} logprobs for {len(ids)} ids; use a version OpenRLHF supports"
            )
        return tuple(
            float(candidates[token].logprob) for token, candidates in zip(ids, per_token or ())
        )


async def play(
    rollout: Rollout,
    config: GemConfig,
    label: str,
    engine: EnginePolicy,
    renderer: Renderer,
    max_length: int,
) -> Episode:
    """Play the episode of one label. An error of the engine ends the run."""
    sampling = engine.sampling(config.max_turn_tokens, max_length)
    warn_if_cut(sampling)
    limits = config.limits(engine.step, max_context=max_length)
    return await rollout.episode(
        config.task_of(label), policy=engine, renderer=renderer, sampling=sampling, limits=limits
    )
