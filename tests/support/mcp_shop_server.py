"""An MCP server for a SQLite database, with misbehaving tools, for mcp 1 and 2, stdio or HTTP."""

from __future__ import annotations

import argparse
import os
import sqlite3
import time
from typing import Any

from mcp.types import EmbeddedResource

try:
    from mcp.server.mcpserver import MCPServer as Server
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server
    from mcp.server.fastmcp.exceptions import ToolError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--die", action="store_true", help="exit before the first message")
    args = parser.parse_args()
    if args.die:
        raise SystemExit("the server has no licence to run")
    server = Server("shop")

    @server.tool()
    def schema() -> str:
        """The tables of the database, as SQL."""
        return "\n".join(sql for (sql,) in _run(args.database, "select sql from sqlite_master"))

    @server.tool()
    def query(sql: str) -> str:
        """The rows of a select statement."""
        return repr(_run(args.database, sql))

    @server.tool()
    def execute(sql: str) -> str:
        """Runs a statement that changes the database; says how many rows it changed."""
        db = sqlite3.connect(args.database)
        with db:
            changed = db.execute(sql).rowcount
        db.close()
        return f"{changed} row(s) changed"

    @server.tool()
    def sleep(seconds: float) -> str:
        """Takes its time."""
        time.sleep(seconds)
        return "slept"

    @server.tool()
    def crash() -> str:
        """Ends the server in the middle of the call."""
        os._exit(7)

    @server.tool()
    def process() -> str:
        """The process id of the server."""
        return str(os.getpid())

    @server.tool()
    def manual() -> list[EmbeddedResource]:
        """The manual, as an embedded text and as embedded bytes."""
        text = {"uri": "file:///manual.txt", "text": "Orders are final."}
        blob = {"uri": "file:///manual.pdf", "blob": "JVBERg=="}
        return [
            EmbeddedResource.model_validate({"type": "resource", "resource": resource})
            for resource in (text, blob)
        ]

    if not args.port:
        server.run()
    elif hasattr(server, "settings") and hasattr(server.settings, "port"):  # mcp 1
        server.settings.port = args.port
        server.run(transport="streamable-http")
    else:
        server.run(transport="streamable-http", port=args.port)


def _run(database: str, sql: str) -> list[Any]:
    db = sqlite3.connect(database)
    try:
        return db.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise ToolError(str(error)) from error
    finally:
        db.close()


if __name__ == "__main__":
    main()
