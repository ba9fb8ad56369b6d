"""The commands `gem-rl tools` and `gem-rl index`."""
