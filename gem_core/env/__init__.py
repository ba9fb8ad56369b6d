"""Environments: the base class, wrappers, the registry and mixtures."""
