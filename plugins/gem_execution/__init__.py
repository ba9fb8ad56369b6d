"""Execution of environments in separate processes, on a Ray cluster, and in vectors."""
