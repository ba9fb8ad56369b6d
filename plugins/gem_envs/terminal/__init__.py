"""Terminal: tasks in a persistent bash session."""
