"""Agent environments: deep search and a terminal."""
