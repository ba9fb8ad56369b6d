"""Household: ALFWorld's six task types and commands in rooms that the seed furnishes."""
