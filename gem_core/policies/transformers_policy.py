"""Transformers policy: samples from a transformers model in this process, in batches."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

from gem_core.errors import MissingDependencyError, PolicyError
from gem_core.policies.batching import BatchPolicy
from gem_core.types import FinishReason, Generation, Sampling

__all__ = ["TransformersPolicy", "stop_ids_of"]

_SECONDS_TO_END = 60.0
"""How long `close` waits for the token that is being computed."""


class TransformersPolicy:
    """Samples from a causal language model, in left-padded batches with a key-value cache.

    The logprobs are float32 and of the sampling distribution: with temperature, and renormalised
    after a top-k or top-p cut. At temperature 0 every logprob is 0.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        stop_ids: Iterable[int] | None = None,
        seed: int | None = None,
        max_batch: int | None = 256,
        max_wait: float = 0.01,
        where: Literal["thread", "inline"] = "thread",
    ) -> None:
        """`stop_ids`: the tokens that end a turn; default: `stop_ids_of` and the turn end of the
        rollout's chat template. `seed`: makes a run reproducible; global generators are not used.
        For the rest, see `BatchPolicy`.
        """
        torch = _torch()
        self.model, self.tokenizer = model, tokenizer
        self.stop_ids = stop_ids_of(model, tokenizer) if stop_ids is None else frozenset(stop_ids)
        self._chosen_stops = stop_ids is not None
        self.weight_version = 0
        """The version of the model's weights, set by the trainer and copied to every generation."""
        self._generator = torch.Generator(device=model.device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self._pad = next(
            (i for i in (tokenizer.pad_token_id, *sorted(self.stop_ids)) if i is not None), 0
        )
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        self._takes_logits_to_keep = "logits_to_keep" in takes  # saves logits of the prompt
        self._requests = BatchPolicy(
            self.generate_batch, max_batch=max_batch, max_wait=max_wait, where=where, seeded=True
        )
        self._generating = _GeneratingThreads()
        # A thread that runs torch code while Python shuts down aborts the program.
        weakref.finalize(self, self._generating.end)

    @property
    def batches(self) -> int:
        """How many batches were started."""
        return self._requests.batches

    def stop_at(self, turn_end: int) -> None:
        """End turns at the chat template's token, too; `stop_ids` of the caller stay as they are.

        A rollout calls this with its renderer's token, which need not be eos.
        """
        if not self._chosen_stops:
            self.stop_ids |= {turn_end}

    def set_live(self, episodes: int) -> None:
        """Set the number of running episodes, as in `BatchPolicy`."""
        self._requests.set_live(episodes)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Generate for one prompt, as part of a batch."""
        return await self._requests.generate(prompt_ids, sampling)

    def close(self) -> None:
        """End running generations after their current token; the policy is unusable afterwards.

        The end of the program calls it too.
        """
        self._generating.end()

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int | None] | None = None,
    ) -> list[Generation]:
        """Generate for many prompts, blocking; `seeds`: one per prompt, not `sampling.seed`."""
        torch = _torch()
        if any(len(p) == 0 for p in prompts):
            raise PolicyError("a prompt has no ids; the model needs at least one")
        if not prompts:
            return []
        self._generating.begin()
        was_training = self.model.training
        self.model.eval()  # dropout would change the distribution
        try:
            with torch.no_grad():
                return self._sample(
                    prompts, sampling, [sampling.seed] * len(prompts) if seeds is None else seeds
                )
        finally:
            self.model.train(was_training)

    def _sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int | None]
    ) -> list[Generation]:
        torch = _torch()
        device, version = self.model.device, self.weight_version
        width = max(map(len, prompts))
        inputs = torch.tensor(
            [[self._pad] * (width - len(p)) + list(p) for p in prompts], device=device
        )
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        generators = self._seeded_generators(seeds)
        stops = torch.tensor(sorted(self.stop_ids), dtype=torch.long, device=device)
        active = list(range(len(prompts)))  # the prompt of each entry in the batch
        ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        stopped = [False] * len(prompts)
        cache = None
        for _ in range(sampling.max_tokens):
            self._generating.check()
            logits, cache = self._forward(inputs, mask, positions, cache)
            seeded = [generators[i] for i in active] if generators else None
            chosen, chosen_logprobs = _choose(logits, sampling, self._generator, seeded)
            ended = torch.isin(chosen, stops).tolist()
            for prompt, token, logprob, end in zip(
                active, chosen.tolist(), chosen_logprobs.tolist(), ended
            ):
                if not stopped[prompt]:
                    ids[prompt].append(token)
                    logprobs[prompt].append(logprob)
                    stopped[prompt] = end or self._has_stop_string(ids[prompt], sampling.stop)
            going = [i for i, prompt in enumerate(active) if not stopped[prompt]]
            if not going:
                break
            inputs, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(active), 1)], 1)
            if 2 * len(going) <= len(active) and hasattr(cache, "batch_select_indices"):
                # copying the cache costs about one step, so remove ended prompts only by halves
                select = torch.tensor(going, device=device)
                cache.batch_select_indices(select)
                inputs, positions, mask = inputs[select], positions[select], mask[select]
                active = [active[i] for i in going]
        finishes = [FinishReason.STOP if s else FinishReason.LENGTH for s in stopped]
        return [
            Generation(tuple(i), tuple(p), f, versions=(version, version))
            for i, p, f in zip(ids, logprobs, finishes)
        ]

    def _forward(self, inputs: Any, mask: Any, positions: Any, cache: Any) -> tuple[Any, Any]:
        options: dict[str, Any] = {"position_ids": positions} if self._takes_positions else {}
        if self._takes_logits_to_keep:
            options["logits_to_keep"] = 1
        out = self.model(
            input_ids=inputs, attention_mask=mask, past_key_values=cache, use_cache=True, **options
        )
        return out.logits[:, -1].float(), out.past_key_values

    def _seeded_generators(self, seeds: Sequence[int | None]) -> list[Any] | None:
        """Return a generator per seeded prompt, so its answer does not depend on the batch."""
        if all(seed is None for seed in seeds):
            return None
        make = partial(_torch().Generator, device=self.model.device)
        return [self._generator if seed is None else make().manual_seed(seed) for seed in seeds]

    def _has_stop_string(self, ids: list[int], stop: tuple[str, ...]) -> bool:
        """Whether the text contains a stop string, which stays part of the generation."""
        if not stop:
            return False
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(s in text for s in stop)


class _GeneratingThreads:
    """The threads that generate, and the flag that ends them."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads: set[threading.Thread] = set()

    def begin(self) -> None:
        """Register the current thread before it generates."""
        self._threads = {t for t in self._threads if t.is_alive()} | {threading.current_thread()}
        self.check()

    def check(self) -> None:
        """Raise `PolicyError` after `end`."""
        if self._ended.is_set():
            raise PolicyError("the policy is closed; create a new one")

    def end(self) -> None:
        """Wait for the threads, except this one and the main thread, which outlives this call."""
        self._ended.set()
        for thread in self._threads - {threading.current_thread(), threading.main_thread()}:
            thread.join(_SECONDS_TO_END)


def stop_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end tokens of the model's generation config and of the tokenizer."""
    config = getattr(model, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    ids = list(eos) if isinstance(eos, (list, tuple)) else [eos]
    return frozenset(int(i) for i in (*ids, tokenizer.eos_token_id) if i is not None)


def _choose(
    logits: Any, sampling: Sampling, generator: Any, generators: list[Any] | None
) -> tuple[Any, Any]:
    """Sample one token per prompt; return the tokens and their logprobs."""
    torch = _torch()
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
        return chosen, torch.zeros_like(logits[:, 0])
    logprobs = torch.log_softmax(_cut(logits / sampling.temperature, sampling), -1)
    probs = logprobs.exp()
    if generators is None:
        chosen = torch.multinomial(probs, 1, generator=generator)[:, 0]
    else:
        chosen = torch.cat(
            [torch.multinomial(p, 1, generator=g) for p, g in zip(probs, generators)]
        )
    return chosen, logprobs.gather(1, chosen[:, None])[:, 0]


def _cut(logits: Any, sampling: Sampling) -> Any:
    """Set logits outside the top-k tokens and the top-p nucleus to -inf."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1) - probs >= sampling.top_p  # the likelier tokens reach top_p
        outside[:, 0] = False
        logits = logits.masked_fill(outside.scatter(-1, order, outside), float("-inf"))
    return logits


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "a policy from a transformers model", "transformers", str(error)
        ) from error
    return torch
