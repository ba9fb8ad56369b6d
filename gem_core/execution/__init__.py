"""Execution: environments in other processes, on a Ray cluster, and in vectors."""
