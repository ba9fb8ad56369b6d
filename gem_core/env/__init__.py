"""Environments: the base class, wrappers, the registry, mixtures and the checker."""
