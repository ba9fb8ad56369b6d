"""A name oat imports."""


class LoRARequest:
    """Never made: the tests train whole models."""
