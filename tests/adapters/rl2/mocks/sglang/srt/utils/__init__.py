"""Serialization of weights: pickled, because there is no GPU memory to share."""

from __future__ import annotations

import base64
import pickle
from typing import Any


class MultiprocessingSerializer:
    """Serializer that always pickles. SGLang's own sends handles of GPU tensors if it can."""

    @staticmethod
    def serialize(value: Any, output_str: bool = False) -> Any:
        data = pickle.dumps(value)
        return base64.b64encode(data).decode() if output_str else data
