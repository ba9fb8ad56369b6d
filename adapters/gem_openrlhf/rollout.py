"""Rollout: plays episodes on OpenRLHF's own engine, inside an agent executor.

One executor plays all episodes of its vLLM engine concurrently. OpenRLHF's own multi-turn executor
shares one sampling object between episodes and has no limit per turn. Here every turn is a request
with its own parameters, and gem's limits end an episode before OpenRLHF would cut it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import ray
from openrlhf.utils.agent import AgentExecutorBase

from gem_core.adapter_kit.batch import as_evaluated, one_sequence, sequences_or_padding
from gem_core.adapter_kit.critic import cut_state
from gem_core.adapter_kit.engine import generation_of, vllm_logprobs
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.errors import ConfigError
from gem_core.policies.base import warn_if_cut
from gem_core.records.file import WorkerRecords
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, Generation, Sampling
from gem_openrlhf.config import GemConfig, config_of, is_evaluation
from gem_openrlhf.convert import EpisodeLabel, to_batch
from gem_openrlhf.records import find_recorder

__all__ = ["EnginePolicy", "GemAgentExecutor", "SharedTokenizer", "play"]


class SharedTokenizer:
    """A tokenizer in Ray's object store, which each engine loads once.

    OpenRLHF pickles its tokenizer into the call of every prompt. Unpickling a large vocabulary for
    each prompt takes longer than playing a short episode.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.ref = ray.put(tokenizer)


class GemAgentExecutor(AgentExecutorBase):
    """Agent executor that plays the task in a label."""

    def __init__(self) -> None:
        self._rollouts: dict[tuple[str, int | None], Rollout] = {}
        self._records = WorkerRecords()
        self._renderers: dict[str, Renderer] = {}
        self._tokenizers: dict[str, Any] = {}

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
        """Play one episode and return one sequence of at most `max_length` tokens."""
        if images:
            raise ConfigError(
                "a dataset row has images, but gem's environments are text only; remove them"
            )
        config = config_of(label)
        renderer = self._renderer(config, await self._tokenizer(hf_tokenizer))
        engine = EnginePolicy(llm_engine, sampling_params, renderer.turn_end)
        rollout = self._rollout(config)
        episode = await play(rollout, config, label, engine, renderer, max_length)
        played = _label(label, config, episode, renderer, max_length)
        if len(played.sequences) > 1 and not engine.trains_all_sequences:
            one_sequence(episode, 0, "OpenRLHF's own trainer")
        await self._record(played)
        return to_batch(prompt, played, logprobs=sampling_params.logprobs is not None)

    def close(self) -> None:
        """Close the environments and the record files."""
        while self._rollouts:
            self._rollouts.popitem()[1].close()
        self._records.close()

    async def _record(self, played: EpisodeLabel) -> None:
        """Record an episode, or keep it until its advantages are known."""
        path, episode = played.config.record, played.episode
        if path is None:
            return
        evaluation = is_evaluation(played.label)
        if evaluation:
            episode = as_evaluated(episode)
        recorder = find_recorder()
        if recorder is None:
            self._records.write(path, [episode])
        elif evaluation:
            await recorder.write.remote(path, episode)
        else:
            await recorder.keep.remote(played.key, path, episode)

    async def _tokenizer(self, tokenizer: Any) -> Any:
        """Return the tokenizer of a call. OpenRLHF's own trainer sends a copy with every prompt."""
        if not isinstance(tokenizer, SharedTokenizer):
            return tokenizer
        key = tokenizer.ref.hex()
        if key not in self._tokenizers:
            self._tokenizers[key] = await tokenizer.ref
        return self._tokenizers[key]

    def _rollout(self, config: GemConfig) -> Rollout:
        """Return the rollout of a kind of execution."""
        key = (config.execution, config.hosts)
        if key not in self._rollouts:
            self._rollouts[key] = TrainerRollout(config)
        return self._rollouts[key]

    def _renderer(self, config: GemConfig, tokenizer: Any) -> Renderer:
        """Return the renderer of a chat template."""
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        key = json.dumps(
            [
                tokenizer.name_or_path,
                tokenizer.chat_template,
                config.history,
                dict(config.template_kwargs),
            ],
            default=str,
        )
        if key not in self._renderers:
            renderer = config.renderer(tokenizer)
            if renderer.turn_end is None:
                raise ConfigError(
                    "the tokenizer has neither a chat template nor an end token, so no turn would "
                    "end; set tokenizer.eos_token"
                )
            self._renderers[key] = renderer
        return self._renderers[key]


class EnginePolicy:
    """OpenRLHF's vLLM engine as a policy, for one episode."""

    def __init__(self, engine: Any, params: Any, turn_end: int | None) -> None:
        self.engine, self._turn_end = engine, turn_end
        self.params = copy.deepcopy(params)  # all samples of a prompt share the original
        # OpenRLHF's min_tokens=1 forbids an empty turn: it samples from another distribution than
        # the one that is trained
        self.params.min_tokens = 0
        self.params.stop_token_ids = sorted(
            {*(params.stop_token_ids or ()), *(() if turn_end is None else (turn_end,))}
        )
        if not params.stop:  # vLLM searches stop strings in the text, which gem does not need
            self.params.detokenize = False

    @property
    def trains_all_sequences(self) -> bool:
        """Whether gem's trainer runs; OpenRLHF's own takes one sequence per episode."""
        return hasattr(self.engine, "gem_step")

    @property
    def step(self) -> int:
        """Finished updates, as `GemTraining` reports them; 0 with OpenRLHF's own trainer."""
        return int(getattr(self.engine, "gem_step", 0))

    def sampling(self, max_turn_tokens: int | None, max_length: int) -> Sampling:
        """Return OpenRLHF's sampling settings, with a token cap per turn."""
        params = self.params
        cap = min(filter(None, (max_turn_tokens, params.max_tokens, max_length)))
        return Sampling(params.temperature, params.top_p, max(params.top_k or 0, 0), max_tokens=cap)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Generate one turn."""
        params, first_step = copy.copy(self.params), self.step
        params.max_tokens = sampling.max_tokens
        output = (await self.engine.generate(list(prompt_ids), params)).outputs[0]
        requested = params.logprobs is not None
        return generation_of(
            output.token_ids,
            vllm_logprobs(output.token_ids, output.logprobs) if requested else None,
            cut=output.finish_reason == "length",
            turn_end=self._turn_end,
            versions=(first_step, self.step),
        )


async def play(
    rollout: Rollout,
    config: GemConfig,
    label: str,
    engine: EnginePolicy,
    renderer: Renderer,
    max_length: int,
) -> Episode:
    """Play one episode. An engine error ends the run."""
    sampling = engine.sampling(config.max_turn_tokens, max_length)
    warn_if_cut(sampling)
    limits = config.limits(engine.step, max_context=max_length)
    return await rollout.episode(
        config.task_of(label), policy=engine, renderer=renderer, sampling=sampling, limits=limits
    )


def _label(
    label: str, config: GemConfig, episode: Episode, renderer: Renderer, max_length: int
) -> EpisodeLabel:
    """Return the label that carries an episode to the trainer."""
    sequences = sequences_or_padding(episode, renderer.turn_end or 0)
    # the critic reads one token after the state
    state = cut_state(episode, renderer, max_length - 1) if config.needs_values else ()
    return EpisodeLabel(label, config, episode, tuple(sequences), state)
