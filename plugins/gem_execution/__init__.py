"""Execution: environments in processes of their own, on a Ray cluster, and in vectors."""
