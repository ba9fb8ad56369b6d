"""HTTP: the listener of `gem-rl serve` and of the viewer, and the URLs of servers."""
