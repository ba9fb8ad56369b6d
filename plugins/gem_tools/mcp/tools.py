"""MCP tools: a toolset of one or more MCP servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_tools.arguments import positive_number, string_list
from gem_tools.mcp.config import Servers, server_configs
from gem_tools.mcp.server import Server, connection, either, run
from gem_tools.tool import Tool, ToolResult, Toolset

__all__ = ["McpTool", "McpTools"]


class McpTools(Toolset):
    """The tools of one or more servers; a name that two servers use gets the prefix `server_`."""

    def __init__(
        self,
        servers: Servers | None = None,
        *,
        command: str = "",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        oauth: Mapping[str, str] | None = None,
        seconds: float = 30.0,
        start_deadline: float = 30.0,
        only: Sequence[str] = (),
        share: bool = True,
    ) -> None:
        """Configure the servers; the first `tools` call connects.

        `servers` is {name: {command, args, env, cwd} or {url, headers, oauth}}, or a JSON file with
        that mapping under `mcpServers`. A single server is set instead by `command`, `args` and
        `env`, or by `url`, `headers` and `oauth`.
        `oauth` is {client_id, client_secret, issuer}, which needs no browser (`issuer` is the only
        server that gets the secret), or {tokens}, the file of the tokens of a login in a browser;
        both may have {scope}.
        `seconds` is the time limit of a call. `only` lists the tools to show. With `share`, all
        environments share a connection; otherwise each has its own, restarted at every reset.
        """
        single = {
            "command": command,
            "args": args,
            "env": env,
            "url": url,
            "headers": headers,
            "oauth": oauth,
        }
        limits = {
            "seconds": positive_number("seconds", seconds),
            "start_deadline": positive_number("start_deadline", start_deadline),
        }
        names = string_list("only", only)
        configs = server_configs(servers, single)
        _library()
        self._arguments: dict[str, Any] = {
            "servers": servers,
            **single,
            **limits,
            "only": names,
            "share": share,
        }
        self.seconds, self.share, self.only = limits["seconds"], share, tuple(names)
        self.servers = [
            connection(name, config, limits["start_deadline"], share)
            for name, config in configs.items()
        ]

    def begin(self) -> None:
        """Disconnect from servers that are not shared; `tools` then starts them again."""
        if not self.share:
            self.close()
            self.version += 1

    def tools(self) -> list[Tool]:
        """List the tools of all servers, concurrently. Blocks."""

        async def list_all() -> list[list[Any]]:
            return await asyncio.gather(*(server.list_tools() for server in self.servers))

        offered = run(list_all())
        counts = Counter(tool.name for tools in offered for tool in tools)
        selected: list[Tool] = []
        for server, tools in zip(self.servers, offered, strict=True):
            for tool in tools:
                name = tool.name if counts[tool.name] == 1 else f"{server.name}_{tool.name}"
                if not self.only or name in self.only:
                    selected.append(McpTool(server, tool, name, self.seconds))
        unknown = set(self.only) - {tool.name for tool in selected}
        if unknown:
            raise ConfigError(
                f"the MCP servers have no tool {', '.join(sorted(unknown))}; "
                f"they have: {', '.join(sorted(counts))}"
            )
        return selected

    def close(self) -> None:
        """Close the connections that are not shared."""
        if not self.share:
            for server in self.servers:
                run(server.close())

    def twin(self) -> McpTools:
        """Return these tools if they are shared, else new ones with the same arguments."""
        return self if self.share else McpTools(**self._arguments)

    def reconfigure(self, **changes: Any) -> None:
        """Replace some arguments, such as `url` or `headers`.

        The next `tools` call connects; environments call it at their next step or reset.
        """
        known = ", ".join(self._arguments)
        unknown = [name for name in changes if name not in self._arguments]
        if unknown:
            raise ConfigError(f"McpTools has no argument {', '.join(unknown)}; it has: {known}")
        changed = McpTools(**{**self._arguments, **changes})  # raises before anything is closed
        self.close()
        vars(self).update(vars(changed))
        self.version += 1

    @classmethod
    def status(cls) -> str:
        if find_spec("mcp"):
            return "ready"
        return "not installed; in a checkout of gem: pip install '.[mcp]'"


class McpTool(Tool):
    """A tool of an MCP server."""

    deterministic = False

    def __init__(self, server: Server, offered: Any, name: str, seconds: float) -> None:
        self.server, self.seconds, self.name = server, seconds, name
        self.offered_as = str(offered.name)
        self.description = str(offered.description or "")
        self.parameters = dict(
            either(offered, "input_schema", "inputSchema") or {"type": "object", "properties": {}}
        )

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        """Call the server and wait for at most `seconds`."""
        return run(self.server.call(self.offered_as, dict(arguments), self.seconds))


def _library() -> None:
    if find_spec("mcp") is None:
        raise MissingDependencyError("the MCP tools", "mcp", "No module named 'mcp'")
