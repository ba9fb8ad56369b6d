"""Records: episodes in files."""
