"""Agent environments: deep search, and the ids of web navigation and of servers."""
