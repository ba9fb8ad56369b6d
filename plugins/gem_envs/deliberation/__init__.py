"""Deliberation wrappers: turns in which the model plans, reflects or takes notes.

`gem_core.make(id, wrappers=["plan"])` puts them outside of the action format.
"""
