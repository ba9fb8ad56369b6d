"""MCP suite: tasks on MCP servers, verified by the final state of their data."""
