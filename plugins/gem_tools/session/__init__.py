"""Sessions: boxes that live for an episode, with a terminal or a server inside."""
