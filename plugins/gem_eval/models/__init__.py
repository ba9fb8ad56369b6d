"""Models to evaluate: local ones, players, and models of OpenAI-compatible servers."""
