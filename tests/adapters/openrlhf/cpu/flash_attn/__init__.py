"""Mock of flash-attn, which needs a GPU to build: the names that OpenRLHF always imports."""
