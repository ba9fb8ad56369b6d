"""Adapter kit: the code that all trainer adapters share, and the conformance kit."""
