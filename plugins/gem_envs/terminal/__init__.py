"""Terminal: tasks at a living bash prompt."""
