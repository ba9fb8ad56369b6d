"""WikiGame: walk from page to page of a hyperlinked corpus."""
