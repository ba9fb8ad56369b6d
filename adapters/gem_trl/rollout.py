"""Rollout: plays episodes on TRL's own engine, inside a rollout function.

All episodes that wait for the model share one call of the engine: transformers, its continuous
batching, or vLLM. If that call is collective (vLLM server, tensor parallelism, sharded weights),
ranks generate in lockstep: every rank makes the same number of calls with the same number of
prompts, and discards the completions of padding prompts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import chain
from typing import Any

from gem_core.adapter_kit.batch import as_evaluated, one_sequence
from gem_core.adapter_kit.settings import model_context
from gem_core.adapter_kit.trainer_rollout import TrainerRollout
from gem_core.errors import ConfigError
from gem_core.policies.batching import BatchPolicy, cut_generation
from gem_core.records.file import WorkerRecords
from gem_core.rollout.caller_thread import CallersThread
from gem_core.rollout.engine import Rollout
from gem_core.rollout.renderer import Renderer
from gem_core.training.metrics import BatchMetrics
from gem_core.types import Episode, FinishReason, Generation, Sampling, Task, TurnStatus
from gem_trl.config import GemConfig, check_settings
from gem_trl.convert import Row, to_batch
from gem_trl.logs import Evaluation, gather
from gem_trl.updates import Batch, Updates, updates_of

__all__ = [
    "EnginePolicy",
    "GemRollout",
    "is_sharded",
    "load_weights_at_once",
    "needs_lockstep",
    "play",
    "stop_ids",
]


class GemRollout:
    """The rollout function of one `GemConfig`.

    A trainer with gem's advantages plays before it calls TRL's code: `played` then holds the batch
    that TRL's code gets. Otherwise TRL's call plays.
    """

    def __init__(self, config: GemConfig) -> None:
        self.config = config
        self.calls: list[int] = []
        """The number of prompts in each engine call of the last rollout."""
        self.rows: list[Row] = []
        """The rows of the last batch."""
        self.played: dict[str, Any] | None = None
        self.updates: Updates | None = None
        self.evaluation: Evaluation | None = None
        self._rollout: Rollout | None = None
        self._renderer: Renderer | None = None
        self._records: WorkerRecords | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return one sequence per prompt.

        TRL has already repeated each prompt `num_generations` times.
        """
        if self.played is not None:
            batch, self.played = self.played, None
            return batch
        episodes = self.play(prompts, trainer)
        self.record(episodes)
        if trainer.model.training and self.updates is not None:
            metrics = BatchMetrics.total(gather(BatchMetrics.of(episodes)))
            self.updates.batches.append(Batch(updates_of(trainer), metrics))
        elif self.evaluation is not None:
            self.evaluation.add(episodes)
        end_id = self.prepare(trainer).turn_end or 0
        return to_batch(
            [Row(one_sequence(e, end_id, "GRPOTrainer"), n, e) for n, e in enumerate(episodes)]
        )

    def play(self, prompts: Sequence[Any], trainer: Any) -> list[Episode]:
        """Play one episode per prompt."""
        renderer = self.prepare(trainer)
        tasks = [self.config.task_of(prompt, index) for index, prompt in enumerate(prompts)]
        if self._records is None:
            self._records = WorkerRecords(str(trainer.accelerator.process_index))
        return self.episodes(tasks, trainer, renderer)

    def episodes(self, tasks: Sequence[Task], trainer: Any, renderer: Renderer) -> list[Episode]:
        """Play the episodes of one generation batch."""
        config, args = self.config, trainer.args
        if self._rollout is None:
            self._rollout = TrainerRollout(config, renderer=renderer)
        self._rollout.configure(
            renderer=renderer,
            sampling=Sampling(
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=max(args.top_k or 0, 0),
                max_tokens=config.max_turn_tokens or args.max_completion_length,
            ),
            limits=config.limits(
                updates_of(trainer),
                max_context=_context_of(trainer),
                max_response=args.max_completion_length,
            ),
            concurrency=len(tasks),
        )
        lockstep = needs_lockstep(trainer) if config.lockstep is None else config.lockstep
        self.calls.clear()
        engine = (
            LockstepPolicy(trainer, self.calls, len(tasks))
            if lockstep
            else EnginePolicy(trainer, self.calls)
        )
        evaluation = not trainer.model.training
        episodes = play(self._rollout, tasks, engine, config.batch_wait, evaluation)
        if engine.has_logprobs:
            episodes = [_mask_unscored(episode) for episode in episodes]
        return [as_evaluated(e) for e in episodes] if evaluation else episodes

    def record(self, episodes: Iterable[Episode]) -> None:
        """Append episodes to `GemConfig.record`."""
        if self._records is not None:
            self._records.write(self.config.record, episodes)

    def prepare(self, trainer: Any) -> Renderer:
        """Check the settings, once per trainer, and the chat template; return the renderer.

        Trainers with gem's advantages also call it when they are constructed.
        """
        if self.updates is None or self.updates.trainer is not trainer:
            check_settings(trainer, self.config)
            _exclude_failed(trainer)
            load_weights_at_once(trainer)
            self.updates = Updates(self.config, trainer, self.close)
            self.evaluation = Evaluation(trainer)
            trainer.add_callback(self.updates)
            trainer.add_callback(self.evaluation)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        if self._renderer is None or self._renderer.tokenizer is not tokenizer:
            renderer = self.config.renderer(tokenizer)
            stops = stop_ids(trainer)
            if renderer.turn_end is None or renderer.turn_end not in stops:
                raise ConfigError(
                    f"the chat template ends a turn with token {renderer.turn_end}, but generation "
                    f"stops at {sorted(stops)}, so no turn would end; set tokenizer.eos_token and "
                    "model.generation_config.eos_token_id to the template's token"
                )
            self._renderer = renderer
        return self._renderer

    def close(self) -> None:
        """Close environments and record files. Further training reopens them."""
        if self._rollout is not None:
            self._rollout.close()
        if self._records is not None:
            self._records.close()
        self._rollout = self._records = None


class EnginePolicy:
    """TRL's generation as a policy, called on the trainer's thread."""

    def __init__(self, trainer: Any, calls: list[int]) -> None:
        self.trainer, self.calls = trainer, calls
        self.stops = stop_ids(trainer)
        self.has_logprobs = False
        """Whether the engine returns logprobs."""

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        """Generate one turn for each prompt."""
        self.calls.append(len(prompts))
        parameters = inspect.signature(self.trainer._generate_single_turn).parameters
        number = {"num_generations": 1} if "num_generations" in parameters else {}
        training = self.trainer.model.training
        with _one_turn(self.trainer, sampling.max_tokens, set_number=not number):
            completions, logprobs = self.trainer._generate_single_turn(prompts, None, {}, **number)
        if self.trainer.model.training != training:  # after continuous batching
            self.trainer.model.train(training)
        self.has_logprobs = self.has_logprobs or logprobs is not None
        step = self.trainer.state.global_step
        return [
            Generation(
                tuple(ids),
                _complete(None if logprobs is None else logprobs[i]),
                self._finish_reason(ids, sampling.max_tokens),
                versions=(step, step),
            )
            for i, ids in enumerate(completions)
        ]

    def wait_for_others(self, sampling: Sampling) -> None:
        """Return at once: this rank generates alone."""

    def _finish_reason(self, ids: Sequence[int], cap: int) -> FinishReason:
        """Return why a turn ended. TRL drops vLLM's reason.

        A turn below the cap was not cut: a stop string of `generation_kwargs` may have ended it.
        """
        if not ids:
            return FinishReason.EMPTY
        cut = len(ids) >= cap and ids[-1] not in self.stops
        return FinishReason.LENGTH if cut else FinishReason.STOP


class LockstepPolicy(EnginePolicy):
    """TRL's generation as a policy, with every rank in every call.

    In each round the ranks agree on the largest token cap that any of them needs. If it is above
    0, all ranks call the engine with `size` prompts, and each cuts its completions to its own cap.
    A rank with fewer live episodes adds padding prompts and discards their completions.
    """

    def __init__(self, trainer: Any, calls: list[int], size: int) -> None:
        super().__init__(trainer, calls)
        self.size = size
        self._padding: list[int] = [next(iter(self.stops))]

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
        cap = self._largest_cap(sampling.max_tokens)
        self._padding = min(prompts, key=len)
        padded = prompts + [self._padding] * (self.size - len(prompts))
        generations = super().generate(padded, replace(sampling, max_tokens=cap))[: len(prompts)]
        return [cut_generation(generation, sampling.max_tokens) for generation in generations]

    def wait_for_others(self, sampling: Sampling) -> None:
        """Take part in the rounds of the ranks that are still playing."""
        while cap := self._largest_cap(0):
            super().generate([self._padding] * self.size, replace(sampling, max_tokens=cap))

    def _largest_cap(self, own: int) -> int:
        """Return the largest cap of any rank; 0 if all ranks have finished."""
        import torch

        accelerator = self.trainer.accelerator
        return int(accelerator.gather(torch.tensor([own], device=accelerator.device)).max().item())


def play(
    rollout: Rollout,
    tasks: Sequence[Task],
    engine: EnginePolicy,
    batch_wait: float,
    evaluation: bool = False,
) -> list[Episode]:
    """Play one episode per task. An engine error ends the run.

    Episodes run on another thread. TRL's engine belongs to this one and generates here.
    """
    caller = CallersThread()
    rollout.configure(
        BatchPolicy(
            lambda prompts, sampling: caller.call(engine.generate, prompts, sampling),
            max_wait=batch_wait,
            retry=False,
        )
    )
    episodes = caller.run(lambda: rollout.run_batch(tasks, evaluation=evaluation), rollout.stop)
    engine.wait_for_others(rollout.sampling)
    return episodes


def needs_lockstep(trainer: Any) -> bool:
    """Return whether the engine is collective: all ranks must call it together."""
    if trainer.accelerator.num_processes == 1:
        return False
    sharded = is_sharded(trainer)
    if getattr(trainer, "use_vllm", False):
        args = trainer.args
        # in sleep mode, vLLM loads the weights at every call: sharded ones come from all ranks
        wakes = sharded and getattr(args, "vllm_enable_sleep_mode", False)
        return bool(trainer.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1 or wakes)
    return sharded


def is_sharded(trainer: Any) -> bool:
    """Return whether FSDP or DeepSpeed divides the weights among the ranks."""
    names = ("is_fsdp_enabled", "is_deepspeed_enabled")
    return any(getattr(trainer, name, False) for name in names)


@contextmanager
def _one_turn(trainer: Any, max_tokens: int, set_number: bool) -> Iterator[None]:
    """Cap generation at `max_tokens` for one turn, then restore TRL's cap for the whole sequence.

    `set_number`: also set the number of generations to 1. vLLM's server mode expects repeated
    prompts and keeps every n-th, but all our prompts differ. Newer versions of TRL take the number
    as an argument of `_generate_single_turn`.
    """
    changes = [
        (getattr(trainer, "generation_config", None), "max_new_tokens", max_tokens),
        (getattr(trainer, "vllm_generation", None), "max_completion_length", max_tokens),
    ]
    if set_number:
        changes += [(trainer, "num_generations", 1), (trainer, "num_generations_eval", 1)]
    changes = [
        (owner, name, value)
        for owner, name, value in changes
        if owner is not None and hasattr(owner, name)
    ]
    before = [getattr(owner, name) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changes, before):
            setattr(owner, name, value)


def _exclude_failed(trainer: Any) -> None:
    """Exclude failed episodes, further rows and padding rows from the rewards of all functions.

    TRL excludes a row from its group only if every reward function returns None for it. Otherwise
    it counts the None of gem's reward function as 0.
    """
    calculate = getattr(trainer, "_calculate_rewards", None)
    if calculate is None or hasattr(calculate, "excludes_failed"):
        return

    @wraps(calculate)
    def calculate_rewards(inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        rewards = calculate(inputs, *args, **kwargs)  # of all ranks, one column per function
        episodes = [row["gem_row"].episode for row in inputs]
        excluded = [episode is None or episode.failed for episode in episodes]
        rewards[list(chain(*gather(excluded)))] = math.nan
        return rewards

    calculate_rewards.excludes_failed = True  # type: ignore[attr-defined]
    trainer._calculate_rewards = calculate_rewards


def load_weights_at_once(trainer: Any) -> None:
    """Let a colocated vLLM load all weights in one call.

    TRL makes a call per parameter, and in every call vLLM walks over its whole model. Sharded and
    LoRA weights are still loaded one by one, because TRL gathers or merges them during its loop.
    """
    generation: Any = getattr(trainer, "vllm_generation", None)
    parameters: Any = getattr(generation, "_iter_named_params", None)  # of newer versions of TRL
    if (
        parameters is None
        or generation.mode != "colocate"
        or "_iter_named_params" in vars(generation)
        or is_sharded(trainer)
        or hasattr(generation.model, "peft_config")
    ):
        return

    def load_all() -> Any:
        """Load the weights, and leave none for TRL's loop."""
        try:
            worker = generation.llm.llm_engine.model_executor.driver_worker
            load = worker.model_runner.model.load_weights
        except AttributeError:  # TRL knows where another version of vLLM has its model
            return parameters()
        load(parameters())
        return iter(())

    generation._iter_named_params = load_all


def stop_ids(trainer: Any) -> frozenset[int]:
    """Return the ids at which generation stops: TRL's list, or the tokenizer's end token."""
    ids = getattr(trainer, "eos_token_ids", None)
    if ids is None:
        ids = getattr(trainer, "_tokenizer", trainer.processing_class).eos_token_id
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def _complete(logprobs: Sequence[float | None] | None) -> tuple[float, ...] | None:
    """Return the logprobs of a completion; None if one is missing or not finite."""
    if logprobs is None:
        return None
    known = tuple(p for p in logprobs if p is not None and math.isfinite(p))
    return known if len(known) == len(logprobs) else None


def _mask_unscored(episode: Episode) -> Episode:
    """Mask the turns in which vLLM could not score a token: its logprob was NaN.

    TRL needs a number for every token, and does not correct masked ones.
    """
    turns = tuple(
        replace(turn, status=TurnStatus.MASKED, logprobs=(0.0,) * len(turn.action_ids))
        if turn.action_ids and turn.logprobs is None and not episode.failed
        else turn
        for turn in episode.turns
    )
    return episode if turns == episode.turns else replace(episode, turns=turns)


def _context_of(trainer: Any) -> int | None:
    """Return the longest sequence that the engine accepts; None if it has no limit."""
    if getattr(trainer, "use_vllm", False):
        length = getattr(trainer.args, "vllm_max_model_length", None)
        if length:
            return int(length)
    return model_context(trainer.accelerator.unwrap_model(trainer.model).config)
