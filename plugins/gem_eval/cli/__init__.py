"""The commands `gem-rl eval`, `compare`, `view` and `plot`."""
