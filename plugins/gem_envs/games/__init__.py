"""Games: small text games in pure Python."""
