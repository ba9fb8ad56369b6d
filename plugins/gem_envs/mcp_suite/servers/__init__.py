"""MCP servers of the suite: programs that run in a box and that gem never imports."""
