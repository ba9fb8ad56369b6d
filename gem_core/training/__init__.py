"""Training: episodes as sequences of tokens, advantages, and the configuration every trainer shares."""
