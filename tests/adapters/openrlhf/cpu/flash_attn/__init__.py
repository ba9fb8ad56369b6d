"""Mock of flash-attn, which needs a GPU to build: the names OpenRLHF imports with any attention."""
