"""Episode records: JSON-lines files, serialisation and redaction of secrets."""
