"""Rollout: what GRPOTrainer calls for completions. Plays an episode per prompt, on the trainer's own generation engine.

All live episodes that wait for the model go into one call of the engine, whichever it is: transformers, its continuous
batching, or vLLM. Where that call is collective (vLLM server, tensor parallelism, sharded weights), ranks generate in
lockstep: every rank makes the same number of calls with the same number of prompts, rows that are done standing in.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from gem_core.errors import ConfigError
from gem_core.policies.batching import BatchPolicy, cut_generation
from gem_core.records.file import RecordWriter, record_of
from gem_core.rollout.caller_thread import CallersThread
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.types import Episode, FinishReason, Generation, Sampling
from gem_trl.config import check_trainer
from gem_trl.convert import to_rows

if TYPE_CHECKING:
    from gem_trl.config import GemConfig

__all__ = ["GemRollout", "needs_lockstep", "updates_of"]


class GemRollout:
    """The rollout function of one `GemConfig`."""

    def __init__(self, spec: GemConfig) -> None:
        self.spec = spec
        self.calls: list[int] = []
        """How many prompts each call of the engine got, in the last rollout."""
        self._renderer: Renderer | None = None
        self._writer: RecordWriter | None = None
        self._rollout: Rollout | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's contract: raw prompts in, already repeated `num_generations` times; one row for each out."""
        renderer = self.prepare(trainer)
        episodes = self.play(prompts, trainer, renderer)
        if self.spec.record is not None:
            self._record(episodes, trainer)
        return to_rows(episodes, renderer.turn_end or 0)

    def play(self, prompts: list[Any], trainer: Any, renderer: Renderer) -> list[Episode]:
        """The episodes of one generation batch."""
        spec, args = self.spec, trainer.args
        limits = spec.limits(updates_of(trainer), max_context=_context_of(trainer), max_response=args.max_completion_length)
        sampling = Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=max(args.top_k or 0, 0),
            max_tokens=spec.max_turn_tokens or args.max_completion_length,
        )
        tasks = [spec.task(spec.seed_of(prompt), index) for index, prompt in enumerate(prompts)]
        lockstep = needs_lockstep(trainer) if spec.lockstep is None else spec.lockstep
        engine = _Lockstep(trainer, len(prompts), self.calls) if lockstep else _Engine(trainer, self.calls)
        self.calls.clear()
        caller = CallersThread()  # TRL's engine belongs to this thread; the episodes play on another
        policy = BatchPolicy(lambda prompts, sampling: caller.call(engine.generate, prompts, sampling), max_wait=spec.batch_wait)
        if self._rollout is None:
            self._rollout = Rollout(policy, renderer, sampling=sampling, limits=limits, concurrency=len(prompts))
        rollout = self._rollout
        rollout.reuse(policy, renderer, sampling=sampling, limits=limits, concurrency=len(prompts))
        episodes = caller.run(lambda: rollout.run_batch(tasks), rollout.stop)
        if engine.failure is not None:  # a broken engine is no bad rollout: going on would train on nothing, step after step
            raise engine.failure
        engine.wait_for_others(sampling)
        return episodes

    def prepare(self, trainer: Any) -> Renderer:
        """Checks trainer and template; called at construction, too, where gem's advantages are used."""
        check_trainer(trainer, self.spec, per_turn=hasattr(trainer, "gem_spec"))
        if not any(isinstance(c, _AtTheEnd) and c.rollout is self for c in trainer.callback_handler.callbacks):
            trainer.add_callback(_AtTheEnd(self))
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if self._renderer is None or self._renderer.tokenizer is not tokenizer:
            renderer = Renderer(tokenizer, template_kwargs=self.spec.template_kwargs)
            stops = _stop_ids(trainer)
            if renderer.turn_end is None or renderer.turn_end not in stops:
                raise ConfigError(
                    f"the chat template ends a turn with token {renderer.turn_end}, but generation stops at {sorted(stops)}, so "
                    "that no turn would end; set tokenizer.eos_token and model.generation_config.eos_token_id to the template's"
                )
            self._renderer = renderer
        return self._renderer

    def close(self) -> None:
        """Closes environments and record. A trainer that goes on has them opened again."""
        if self._rollout is not None:
            self._rollout.close()
        if self._writer is not None:
            self._writer.close()
        self._rollout = self._writer = None

    def _record(self, episodes: Sequence[Episode], trainer: Any) -> None:
        if self._writer is None:
            assert self.spec.record is not None
            self._writer = record_of(self.spec.record, str(trainer.accelerator.process_index))
        for episode in episodes:
            self._writer.write(episode)


class _AtTheEnd(TrainerCallback):  # type: ignore[misc]
    """Closes what a rollout function keeps open from batch to batch."""

    def __init__(self, rollout: GemRollout) -> None:
        self.rollout = rollout

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.rollout.close()


def updates_of(trainer: Any) -> int:
    """How many batches of episodes were trained on, which is what a horizon grows by. TRL counts optimizer steps, and takes
    several for a batch where `steps_per_generation` or `num_iterations` say so."""
    args = trainer.args
    steps, accumulated = args.steps_per_generation * args.num_iterations, args.gradient_accumulation_steps
    return int(trainer.state.global_step * accumulated // max(steps, accumulated))


class _Engine:
    """The trainer's own generation, called on the trainer's own thread."""

    def __init__(self, trainer: Any, calls: list[int]) -> None:
        self.trainer, self.calls = trainer, calls
        self.stops = _stop_ids(trainer)
        self.failure: Exception | None = None
        """What the trainer's engine raised: an error of the run, not of an episode."""

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        """One turn for each prompt."""
        if self.failure is not None:
            raise self.failure
        try:
            return self._generate(prompts, sampling)
        except Exception as error:
            self.failure = error
            raise

    def _generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        self.calls.append(len(prompts))
        takes = inspect.signature(self.trainer._generate_single_turn).parameters
        several = {"num_generations": 1} if "num_generations" in takes else {}
        with _one_turn(self.trainer, sampling.max_tokens, set_number=not several):
            found, logprobs = self.trainer._generate_single_turn(prompts, None, {}, **several)
        step = self.trainer.state.global_step
        return [
            Generation(
                tuple(ids),
                None if logprobs is None or any(p is None for p in logprobs[i]) else tuple(logprobs[i]),
                FinishReason.STOP if ids and ids[-1] in self.stops else FinishReason.LENGTH if ids else FinishReason.EMPTY,
                versions=(step, step),
            )
            for i, ids in enumerate(found)
        ]

    def wait_for_others(self, sampling: Sampling) -> None:
        """Nothing to wait for: this rank generates alone."""


class _Lockstep(_Engine):
    """Generation where every rank has to take part in every call, with as many prompts and the same cap as the others.

    A round is: does any of us still play, and up to how many tokens? If so, all call the engine, `size` prompts each, with the
    largest cap of all, and each rank cuts its answers to its own. A rank that is done, or has fewer live episodes than rows,
    fills up with a prompt it throws away.
    """

    def __init__(self, trainer: Any, size: int, calls: list[int]) -> None:
        super().__init__(trainer, calls)
        self.size = size
        self._filler: list[int] = [next(iter(self.stops))]

    def _generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        cap = self._largest_cap(sampling.max_tokens)
        self._filler = min(prompts, key=len)
        filled = prompts + [self._filler] * (self.size - len(prompts))
        found = super()._generate(filled, replace(sampling, max_tokens=cap))[: len(prompts)]
        return [cut_generation(generation, sampling.max_tokens) for generation in found]

    def wait_for_others(self, sampling: Sampling) -> None:
        """Takes part in the rounds of the ranks that still play."""
        while cap := self._largest_cap(0):
            super()._generate([self._filler] * self.size, replace(sampling, max_tokens=cap))

    def _largest_cap(self, own: int) -> int:
        """0 where nobody plays any more."""
        import torch

        accelerator = self.trainer.accelerator
        return int(accelerator.gather(torch.tensor([own], device=accelerator.device)).max().item())


def needs_lockstep(trainer: Any) -> bool:
    """Whether the engine is collective, so that ranks must call it together."""
    if trainer.accelerator.num_processes == 1:
        return False
    sharded = getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False)
    if getattr(trainer, "use_vllm", False):
        args = trainer.args
        # vLLM that sleeps takes the weights over at every call, which gathers them from all ranks where they are sharded
        wakes = sharded and getattr(args, "vllm_enable_sleep_mode", False)
        return bool(trainer.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1 or wakes)
    return bool(sharded)


@contextmanager
def _one_turn(trainer: Any, max_tokens: int, set_number: bool) -> Iterator[None]:
    """TRL caps a call at `max_completion_length`, which is for the whole row; for one turn it is set aside and put back.

    `set_number`: where `_generate_single_turn` does not take `num_generations`, vLLM's server mode keeps every n-th prompt
    only, because it expects them repeated; ours are all different.
    """
    changes = [(getattr(trainer, "generation_config", None), "max_new_tokens", max_tokens)]
    changes.append((getattr(trainer, "vllm_generation", None), "max_completion_length", max_tokens))
    if set_number:
        changes += [(trainer, "num_generations", 1), (trainer, "num_generations_eval", 1)]
    changes = [(owner, name, value) for owner, name, value in changes if owner is not None and hasattr(owner, name)]
    before = [getattr(owner, name) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changes, before):
            setattr(owner, name, value)


def _stop_ids(trainer: Any) -> frozenset[int]:
    """Where generation stops: TRL's own list, or, in versions without one, the tokenizer's end token."""
    found = getattr(trainer, "eos_token_ids", None)
    if found is None:
        found = getattr(trainer, "_tokenizer", trainer.processing_class).eos_token_id
    return frozenset([found] if isinstance(found, int) else found or ())


def _context_of(trainer: Any) -> int | None:
    length = getattr(trainer.args, "vllm_max_model_length", None) if getattr(trainer, "use_vllm", False) else None
    config = trainer.accelerator.unwrap_model(trainer.model).config
    length = length or getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(length) if length else None
