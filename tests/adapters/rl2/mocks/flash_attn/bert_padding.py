"""Names that transformers imports."""

from __future__ import annotations

from flash_attn.flash_attn_interface import not_in_mock

pad_input = unpad_input = not_in_mock
