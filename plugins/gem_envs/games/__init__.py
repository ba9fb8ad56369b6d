"""Small text games in pure Python."""
