"""Serialization of weights."""

from __future__ import annotations

import base64
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.multiprocessing  # noqa: F401 - ForkingPickler then sends a GPU tensor as a handle


class MultiprocessingSerializer:
    """Serializer that sends handles of GPU tensors, as SGLang's own, and copies of others."""

    @staticmethod
    def serialize(value: Any, output_str: bool = False) -> Any:
        if getattr(value, "is_cuda", False):
            buffer = io.BytesIO()
            ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
            data = buffer.getvalue()
        else:
            data = pickle.dumps(value)
        return base64.b64encode(data).decode() if output_str else data
