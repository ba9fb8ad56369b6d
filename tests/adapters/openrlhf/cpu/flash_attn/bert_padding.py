"""Mock of `flash_attn.bert_padding`, which OpenRLHF calls for packed samples only."""

from __future__ import annotations

from typing import Any


def absent(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "packed samples and ring attention need the real flash-attn; this is a mock"
    )


index_first_axis = pad_input = rearrange = unpad_input = absent
