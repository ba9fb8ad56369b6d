"""Mock of `flash_attn.utils.distributed`, which OpenRLHF calls for ring attention only."""

from flash_attn.bert_padding import absent as all_gather

__all__ = ["all_gather"]
