"""Mock of vLLM's LoRA requests: a name that oat imports."""


class LoRARequest:
    """Never instantiated: the tests train all weights of a model."""
