"""Mock of flash-attn: the names that ring-flash-attn imports. Its kernels need CUDA."""
