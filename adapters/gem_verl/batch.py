"""Batch: the episodes of a batch in verl's queue, and the fields that gem writes to it.

The episodes travel with their sequences in `extra_fields`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transfer_queue as tq

from gem_core.adapter_kit.batch import response_start, trained_sequences
from gem_core.adapter_kit.played import PlayedBatch
from gem_core.adapter_kit.response_tensors import gap_of
from gem_core.errors import BatchMismatchError
from gem_core.training.sequences import padding_sequence
from gem_core.types import Episode
from gem_verl.config import AGENT

__all__ = [
    "EPISODES",
    "episodes_at",
    "logprob_gap_of",
    "mean_per_turn",
    "only_tensors",
    "put",
    "put_per_turn",
    "read_batch",
    "session_of",
    "stored",
]

EPISODES = "extra_fields"
"""The field of verl's queue with the episodes."""


def session_of(key: str) -> str:
    """Return the session of a key of verl's queue, {uid}_{session}_{number}: one episode."""
    return key.rpartition("_")[0]


def stored(batch: Any, *fields: str) -> Any:
    """Read fields of a batch from verl's queue."""
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )


@contextmanager
def only_tensors(batch: Any) -> Iterator[None]:
    """Let verl's workers fetch the tensors of a batch inside the block, not its other fields.

    They would also fetch the rows of the dataset and the episodes, and tensordict would visit each
    of these objects for every micro-batch. The workers read one field of objects, which is kept:
    the inputs that a processor makes.
    """
    before = batch.fields
    meta = tq.get_client().kv_retrieve_meta(batch.keys, batch.partition_id)
    batch.fields = [
        name
        for name, field in meta.field_schema.items()
        if not field["is_non_tensor"] or name == "multi_modal_inputs"
    ]
    try:
        yield
    finally:
        batch.fields = before


def put(batch: Any, **fields: Sequence[torch.Tensor]) -> Any:
    """Write fields of a batch, one tensor per sequence, to verl's queue. Return the batch."""
    from tensordict import TensorDict

    nested = {
        name: torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)
        for name, tensors in fields.items()
    }
    return tq.kv_batch_put(
        keys=batch.keys,
        partition_id=batch.partition_id,
        fields=TensorDict(nested, batch_size=len(batch.keys)),
    )


def put_per_turn(
    batch: Any,
    played: PlayedBatch,
    lengths: Sequence[int] | None = None,
    write: Callable[..., Any] = put,
    **fields_per_turn: Sequence[Sequence[float]],
) -> Any:
    """Write fields with one number per turn to verl's queue, per token: 0 on untrained tokens.

    `lengths`: those of the responses, if they are known. `write` writes the tensors.
    """
    if lengths is None:
        lengths = [len(responses) for responses in stored(batch, "responses")["responses"]]
    fields: dict[str, list[torch.Tensor]] = {}
    for name, per_turn in fields_per_turn.items():
        fields[name] = []
        for own, length in zip(played.per_token(per_turn), lengths):
            tokens = torch.zeros(length, dtype=torch.float32)  # a tail may follow the sequence
            tokens[: len(own)] = torch.tensor(own, dtype=torch.float32)
            fields[name].append(tokens)
    return write(batch, **fields)


def read_batch(batch: Any, fields: Any = None, *, values: bool = False) -> PlayedBatch:
    """Read the episodes that travel with the sequences of a batch.

    The sequences of a session belong to one episode; the first one carries it. `fields`: those of
    the batch, if they were read before. `values`: the batch is for a critic, as in `to_batch`.
    """
    padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
    fields = stored(batch, EPISODES) if fields is None else fields
    pickled = [_fields(item).get("gem") or b"" for item in fields[EPISODES]]
    sessions = {
        session_of(key): i for i, key in enumerate(batch.keys) if pickled[i] and not padding[i]
    }
    episodes = [pickle.loads(pickled[i]) for i in sessions.values()]
    index_of = {session: index for index, session in enumerate(sessions)}
    expected = [trained_sequences(episode, 0, values=values) for episode in episodes]
    sequences, episode_of, missing = [], [], [len(of_episode) for of_episode in expected]
    for key, is_padding in zip(batch.keys, padding):
        session, _, number = key.rpartition("_")
        index = -1 if is_padding else index_of.get(session, len(expected))
        if index == len(expected) or (index >= 0 and int(number) >= len(expected[index])):
            raise BatchMismatchError(
                f"sequence {key} of verl's batch does not belong to an episode of gem; play all "
                "dataset rows with gem's agent loop: remove agent_name from the rows, and set "
                f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENT}"
            )
        episode_of.append(index)
        sequences.append(padding_sequence((), 0) if is_padding else expected[index][int(number)])
        if not is_padding:
            missing[index] -= 1
    if any(missing):
        raise BatchMismatchError(
            f"{sum(missing)} sequences of the episodes are missing in verl's batch; use a version "
            "of verl that the adapter supports, without patches to its replay buffer"
        )
    return PlayedBatch(episodes, sequences, episode_of)


def episodes_at(keys: Iterable[str], partition_id: str) -> list[Episode]:
    """Return the episodes at some keys of verl's queue; keys without an episode are skipped."""
    first = [key for key in keys if key.endswith("_0")]
    if not first:
        return []
    items = tq.kv_batch_get(keys=first, partition_id=partition_id, select_fields=[EPISODES])
    pickled = [_fields(item).get("gem") for item in items[EPISODES]]
    return [pickle.loads(episode) for episode in pickled if episode]


def logprob_gap_of(fields: Any) -> dict[str, float]:
    """Return the difference of the sampler's and the trainer's logprobs over trained tokens."""
    names = ("rollout_log_probs", "old_log_probs", "response_mask")
    return gap_of(*(torch.cat(list(fields[name])) if name in fields else None for name in names))


def mean_per_turn(batch: Any, played: PlayedBatch) -> tuple[list[list[float]], list[list[float]]]:
    """Return the mean of the advantages of each turn's tokens, and that of their absolute values.

    With verl's own estimators, the tokens of a turn may have different advantages.
    """
    means, absolute = ([[0.0] * len(e.turns) for e in played.episodes] for _ in range(2))
    all_advantages = stored(batch, "advantages")["advantages"]
    for sequence, index, advantages in zip(played.sequences, played.episode_of, all_advantages):
        offset = response_start(sequence)
        for turn, start, end in sequence.spans:
            of_turn = advantages[start - offset : end - offset]
            means[index][turn] = float(of_turn.mean())
            absolute[index][turn] = float(of_turn.abs().mean())
    return means, absolute


def _fields(item: Any) -> dict[str, Any]:
    """Return `extra_fields` of one sequence, which the queue may wrap."""
    fields: dict[str, Any] = getattr(item, "data", item)
    return fields
