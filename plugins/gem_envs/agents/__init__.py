"""Agent tasks: deep search and a terminal."""
