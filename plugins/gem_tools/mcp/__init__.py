"""MCP tools: the tools of Model Context Protocol servers, with deadlines and reconnection."""

from gem_tools.mcp.tools import McpTool, McpTools

__all__ = ["McpTool", "McpTools"]
