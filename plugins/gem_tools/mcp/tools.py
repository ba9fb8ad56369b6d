"""MCP tools: a toolset of one or more MCP servers."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.records.serialize import without_secrets
from gem_tools.mcp.oauth import check_oauth
from gem_tools.mcp.server import Server, connection, either, run
from gem_tools.tool import Tool, ToolResult, Toolset

__all__ = ["McpTool", "McpTools"]


class McpTools(Toolset):
    """The tools of one or more servers; a name that two servers use gets the prefix `server_`."""

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None = None,
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
        that mapping under `mcpServers`. A single server can be set by `command` or `url` instead.
        `oauth` is {client_id, client_secret, issuer}, which needs no browser (`issuer` is the only
        server that gets the secret), or {tokens}, the file of the tokens of a login in a browser;
        both may have {scope}.
        `seconds` is the time limit of a call. `only` lists the tools to show. With `share`, all
        environments share a connection; otherwise each has its own, restarted at every reset.
        """
        if not (seconds > 0 and start_deadline > 0):
            raise ConfigError(
                f"seconds and start_deadline must be positive; got {seconds!r}, {start_deadline!r}"
            )
        self._arguments: dict[str, Any] = {
            "servers": servers,
            "command": command,
            "args": args,
            "env": env,
            "url": url,
            "headers": headers,
            "oauth": oauth,
            "seconds": seconds,
            "start_deadline": start_deadline,
            "only": only,
            "share": share,
        }
        configs = _read(servers)
        if command:
            configs["server"] = {"command": command, "args": list(args), "env": dict(env or {})}
        elif url:
            given = {"oauth": oauth} if oauth is not None else {}
            configs["server"] = {"url": url, "headers": dict(headers or {}), **given}
        if not configs:
            raise ConfigError(
                "the tool 'mcp' needs a server: mcp(command='...', args=[...]), "
                "mcp(url='http://...') or mcp(servers={...})"
            )
        for name, config in configs.items():
            is_mapping = isinstance(config, Mapping)
            if not is_mapping or bool(config.get("command")) == bool(config.get("url")):
                raise ConfigError(
                    f"the MCP server {name!r} needs either a command or a url; "
                    f"got {without_secrets(config)!r}"
                )
            check_oauth(name, config)
        _library()
        self.seconds, self.share, self.only = seconds, share, tuple(only)
        self.servers = [
            connection(name, config, start_deadline, share) for name, config in configs.items()
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
        self.close()
        McpTools.__init__(self, **{**self._arguments, **changes})
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


def _read(
    servers: Mapping[str, Mapping[str, Any]] | str | os.PathLike[str] | None,
) -> dict[str, Mapping[str, Any]]:
    if servers is None:
        return {}
    if not isinstance(servers, (str, os.PathLike)):
        return dict(servers)
    try:
        return dict(json.loads(Path(servers).read_text(encoding="utf-8"))["mcpServers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{servers} is not a JSON file with servers under 'mcpServers': "
            f"{type(error).__name__}: {error}"
        ) from None


def _library() -> None:
    if find_spec("mcp") is None:
        raise MissingDependencyError("the MCP tools", "mcp", "No module named 'mcp'")
