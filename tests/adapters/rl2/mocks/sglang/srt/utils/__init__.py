"""How weights travel: pickled, as there is no GPU memory to point to."""

from __future__ import annotations

import base64
import pickle
from typing import Any


class MultiprocessingSerializer:
    """SGLang's own sends handles of GPU tensors where it can, and pickles where it cannot."""

    @staticmethod
    def serialize(thing: Any, output_str: bool = False) -> Any:
        data = pickle.dumps(thing)
        return base64.b64encode(data).decode() if output_str else data
