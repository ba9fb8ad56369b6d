"""HTTP server that `gem-rl serve` and the viewer share."""
