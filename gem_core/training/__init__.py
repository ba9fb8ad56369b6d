"""Training: token sequences, advantages, metrics, and the config that all trainers share."""
