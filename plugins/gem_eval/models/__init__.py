"""Models to evaluate: local models, baseline players and OpenAI-compatible servers."""
