"""Wire: the protocol buffers of the Tinker API, as tensors and generations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as proto

from gem_core.types import FinishReason, Generation
from gem_tinker.local_server.model import Sequences

__all__ = ["decode_data", "encode_outputs", "encode_samples"]

_DTYPES = {proto.DTYPE_FLOAT32: np.float32, proto.DTYPE_INT64: np.int64}


def decode_data(request: Any) -> Sequences:
    """Return the data of a forward_backward request as tensors."""
    ids, inputs = [], dict[str, list[Any]]()
    for datum in request.data:
        tokens = [np.frombuffer(c.encoded_text.tokens, np.int32) for c in datum.model_input]
        ids.append(torch.from_numpy(np.concatenate(tokens).astype(np.int64)))
        for name, tensor in datum.loss_fn_inputs.items():
            values = np.frombuffer(tensor.dense, _DTYPES[tensor.dtype]).copy()
            inputs.setdefault(name, []).append(torch.from_numpy(values))
    return Sequences(ids, inputs)


def encode_outputs(logprobs: list[Any], total: float) -> bytes:
    """Return the response of a forward_backward request."""
    message = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(num_datums=len(logprobs))
    arrays = [row.numpy().astype(np.float32) for row in logprobs]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
    record.fields["logprobs"].dtype = proto.DTYPE_FLOAT32
    record.fields["logprobs"].data = b"".join(array.tobytes() for array in arrays)
    record.fields["logprobs"].offsets = offsets.tobytes()
    message.metrics["loss:sum"] = total
    return bytes(message.SerializeToString())


def encode_samples(generations: list[Generation]) -> bytes:
    """Return the response of a sample request."""
    message = proto.SampleResponse()
    for generation in generations:
        stopped = generation.finish is FinishReason.STOP
        message.sequences.add(
            stop_reason=proto.STOP_REASON_STOP if stopped else proto.STOP_REASON_LENGTH,
            tokens=np.array(generation.ids, np.int32).tobytes(),
            logprobs=np.array(generation.logprobs, np.float32).tobytes(),
        )
    return bytes(message.SerializeToString())
