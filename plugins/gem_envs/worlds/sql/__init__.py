"""SQL: questions on generated SQLite databases, scored by execution, after BIRD."""
