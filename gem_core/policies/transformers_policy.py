"""Local: a transformers model in this process as a policy, one batch for all episodes that wait."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

from gem_core.errors import ConfigError, MissingDependencyError, PolicyError
from gem_core.policies.batching import BatchPolicy
from gem_core.types import FinishReason, Generation, Sampling

__all__ = ["TransformersPolicy", "stop_ids_of"]

_SECONDS_TO_END = 60.0
"""How long to wait, at most, for the one token that is being computed when a policy is closed."""


class TransformersPolicy:
    """Samples from a causal language model. Concurrent requests go into one left-padded batch with a key-value cache.

    The logprobs are those of the distribution sampled from, in float32: temperature applied, and renormalised behind a
    top-k and top-p cut where there is one. At temperature 0 that is a single token, whose logprob is 0.
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
        """`stop_ids`: the tokens that end a turn; None takes those of the model's generation config and the tokenizer's own.
        `seed`: for a run that can be repeated; no global generator is read or written. The rest is as in `BatchPolicy`."""
        torch = _torch()
        self.model, self.tokenizer = model, tokenizer
        self.stop_ids = stop_ids_of(model, tokenizer) if stop_ids is None else frozenset(stop_ids)
        self.weight_version = 0
        """Which weights the model holds, counted by whoever changes them; every generation carries it."""
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
        self._takes_last_only = (
            "logits_to_keep" in takes
        )  # without it, a long prompt pays for a vocabulary per token
        self._requests = BatchPolicy(
            self.generate_batch, max_batch=max_batch, max_wait=max_wait, where=where, seeded=True
        )
        self._generating = _Generating()
        # A thread that is inside torch when Python shuts down aborts the whole program, whoever left it behind.
        weakref.finalize(self, self._generating.end)

    @property
    def batches(self) -> int:
        """How many batches were generated."""
        return self._requests.batches

    def set_live(self, episodes: int) -> None:
        """Told by the engine how many episodes can be waiting."""
        self._requests.set_live(episodes)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Waits for the batch this prompt goes into."""
        return await self._requests.generate(prompt_ids, sampling)

    def close(self) -> None:
        """Ends what is being generated for a run that was cut short, after the token it is at; a closed policy generates no more.
        Done by itself when the program ends."""
        self._generating.end()

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int | None] | None = None,
    ) -> list[Generation]:
        """Generates for many prompts at once; blocks. For programs without an event loop, and for tests. `seeds`: one for each
        prompt, where they are not all that of `sampling`."""
        torch = _torch()
        _check(prompts, sampling)
        if not prompts:
            return []
        self._generating.begin()
        was_training = self.model.training
        self.model.eval()  # dropout would sample from another distribution than the trainer computes
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
        own = self._row_generators(seeds)
        stops = torch.tensor(sorted(self.stop_ids), dtype=torch.long, device=device)
        rows = list(range(len(prompts)))  # which prompt each row of the batch is
        ids: list[list[int]] = [[] for _ in prompts]
        logprobs: list[list[float]] = [[] for _ in prompts]
        stopped = [False] * len(prompts)
        cache = None
        for _ in range(sampling.max_tokens):
            self._generating.check()
            logits, cache = self._forward(inputs, mask, positions, cache)
            chosen, chosen_logprobs = _choose(
                logits, sampling, self._generator, [own[r] for r in rows] if own else None
            )
            ended = torch.isin(chosen, stops).tolist()
            for row, token, logprob, end in zip(
                rows, chosen.tolist(), chosen_logprobs.tolist(), ended
            ):
                if not stopped[row]:
                    ids[row].append(token)
                    logprobs[row].append(logprob)
                    stopped[row] = end or self._said(ids[row], sampling.stop)
            going = [i for i, row in enumerate(rows) if not stopped[row]]
            if not going:
                break
            inputs, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
            if 2 * len(going) <= len(rows) and hasattr(cache, "batch_select_indices"):
                # copying the cache costs about one step, so rows that have ended leave by halves
                kept = torch.tensor(going, device=device)
                cache.batch_select_indices(kept)
                inputs, positions, mask = inputs[kept], positions[kept], mask[kept]
                rows = [rows[i] for i in going]
        finishes = [FinishReason.STOP if s else FinishReason.LENGTH for s in stopped]
        return [
            Generation(tuple(i), tuple(p), f, versions=(version, version))
            for i, p, f in zip(ids, logprobs, finishes)
        ]

    def _forward(self, inputs: Any, mask: Any, positions: Any, cache: Any) -> tuple[Any, Any]:
        more: dict[str, Any] = {"position_ids": positions} if self._takes_positions else {}
        if self._takes_last_only:
            more["logits_to_keep"] = 1
        out = self.model(
            input_ids=inputs, attention_mask=mask, past_key_values=cache, use_cache=True, **more
        )
        return out.logits[:, -1].float(), out.past_key_values

    def _row_generators(self, seeds: Sequence[int | None]) -> list[Any] | None:
        """With a seed in the request, a generator per row: the answer then depends on the request, not on its batch."""
        if all(seed is None for seed in seeds):
            return None
        make = partial(_torch().Generator, device=self.model.device)
        return [self._generator if seed is None else make().manual_seed(seed) for seed in seeds]

    def _said(self, ids: list[int], stop: tuple[str, ...]) -> bool:
        """Whether a stop string stands in the text so far; it stays there, and so does its last token."""
        if not stop:
            return False
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(s in text for s in stop)


class _Generating:
    """The threads that generate, and the word that they are to end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads: set[threading.Thread] = set()

    def begin(self) -> None:
        """Called on a thread that is about to generate."""
        self._threads = {t for t in self._threads if t.is_alive()} | {threading.current_thread()}
        self.check()

    def check(self) -> None:
        """Raises once it was said to end."""
        if self._ended.is_set():
            raise PolicyError("the policy was closed; make a new one to generate with")

    def end(self) -> None:
        """Waits for every thread but the one that asks and the main one, which does not end before the program does."""
        self._ended.set()
        for thread in self._threads - {threading.current_thread(), threading.main_thread()}:
            thread.join(_SECONDS_TO_END)


def stop_ids_of(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn: all end tokens of the model's generation config, and the tokenizer's own."""
    config = getattr(model, "generation_config", None)
    said = getattr(config, "eos_token_id", None)
    found = list(said) if isinstance(said, (list, tuple)) else [said]
    return frozenset(int(i) for i in (*found, tokenizer.eos_token_id) if i is not None)


def _choose(
    logits: Any, sampling: Sampling, generator: Any, generators: list[Any] | None
) -> tuple[Any, Any]:
    """One token per row and its logprob under the distribution it was drawn from."""
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
    """-inf for what lies outside the k likeliest tokens, and outside the smallest set that holds probability top_p."""
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        outside = (
            probs.cumsum(-1) - probs >= sampling.top_p
        )  # what stands before it already holds top_p; never the first
        outside[:, 0] = False
        logits = logits.masked_fill(outside.scatter(-1, order, outside), float("-inf"))
    return logits


def _check(prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
    if any(len(p) == 0 for p in prompts):
        raise PolicyError("a prompt has no ids; a model needs at least one to continue from")
    if not sampling.temperature >= 0:
        raise ConfigError(
            f"temperature must be 0 (greedy) or more; given: {sampling.temperature!r}"
        )
    if not 0 < sampling.top_p <= 1:
        raise ConfigError(f"top_p must be above 0 and at most 1; given: {sampling.top_p!r}")
    if sampling.top_k < 0:
        raise ConfigError(f"top_k must be 0 (no cut) or more; given: {sampling.top_k!r}")
    if sampling.max_tokens < 1:
        raise ConfigError(f"max_tokens must be 1 or more; given: {sampling.max_tokens!r}")


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "a policy from a transformers model", "transformers", str(error)
        ) from error
    return torch
