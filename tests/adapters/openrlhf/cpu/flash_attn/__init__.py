"""Stands in for flash-attn, which needs a GPU to build: the names OpenRLHF imports whatever the attention is."""
