"""Mock of flash-attn, whose kernels need CUDA: the names ring-flash-attn imports. None of them is called on a CPU."""
