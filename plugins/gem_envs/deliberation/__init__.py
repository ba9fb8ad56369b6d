"""Deliberation wrappers: turns in which the model plans, reflects or takes notes.

Register them with `gem_core.make(id, wrappers=["plan"])`, outside of the action format.
"""
