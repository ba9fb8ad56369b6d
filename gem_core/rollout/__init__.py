"""Rollout: plays episodes with a policy, token-exactly."""
