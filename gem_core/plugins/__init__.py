"""Plugins: hooks, catalogs of what they register, and how they are found and loaded."""
