"""Engine: what a trainer's inference engine returned, as a generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gem_core.errors import EngineError
from gem_core.types import FinishReason, Generation

__all__ = ["generation_of", "vllm_logprobs"]


def generation_of(
    ids: Sequence[int],
    logprobs: Sequence[float] | None,
    *,
    cut: bool,
    turn_end: int | None,
    versions: tuple[int, int] | None = None,
) -> Generation:
    """Return the generation of one turn.

    `logprobs`: None if they were not requested. `cut`: whether the engine stopped at the token cap;
    a turn whose last token ends it is complete nevertheless.
    """
    if logprobs is not None and len(logprobs) != len(ids):
        raise EngineError(
            f"the engine returned {len(logprobs)} logprobs for {len(ids)} tokens, but the trainer "
            "requests one each; use a version of the engine that the trainer supports"
        )
    finish = FinishReason.STOP if ids else FinishReason.EMPTY
    if cut and ids and ids[-1] != turn_end:
        finish = FinishReason.LENGTH
    sampled = None if logprobs is None else tuple(logprobs)
    return Generation(tuple(ids), sampled, finish, versions=versions)


def vllm_logprobs(ids: Sequence[int], candidates: Sequence[Any] | None) -> tuple[float, ...]:
    """Return the logprobs of sampled ids from vLLM's `logprobs`: a dictionary per token."""
    try:
        return tuple(float(c[id].logprob) for id, c in zip(ids, candidates or (), strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"vLLM returned no logprob for one of {len(ids)} sampled tokens ({error!r}), but the "
            "trainer requests one each; use a version of vLLM that the trainer supports"
        ) from error
