"""Sandbox for programs that a model wrote."""
