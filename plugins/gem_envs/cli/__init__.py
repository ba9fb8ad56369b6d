"""Subcommands that gem_envs adds to `gem-rl`."""
