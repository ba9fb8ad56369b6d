"""MCP server of one PostgreSQL database.

gem never imports it. Usage: postgres.py CONNECTION-FILE. It reads the file before every call, and
opens a new connection, so the database may be replaced between two episodes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psycopg
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

MOST_ROWS = 200


def run(sql: str, parameters: tuple[Any, ...] | None = None) -> str:
    """Run SQL in a transaction; return rows as JSON lines, or the number of changed rows."""
    connection = Path(sys.argv[1]).read_text(encoding="utf-8")
    try:
        with psycopg.connect(connection, connect_timeout=10) as database:
            cursor = database.execute(sql.encode(), parameters)
            while cursor.nextset():
                pass
            if cursor.description is None:
                return f"done; {max(0, cursor.rowcount)} row(s) changed"
            names = [column.name for column in cursor.description]
            rows = cursor.fetchmany(MOST_ROWS)
            more = f"\n(only the first {MOST_ROWS} rows)" if len(rows) == MOST_ROWS else ""
    except psycopg.Error as error:
        raise ToolError(str(error).strip() or type(error).__name__) from error
    lines = [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in rows]
    return ("\n".join(lines) or "(no rows)") + more


def list_schemas() -> str:
    """List the schemas of the database."""
    return run("select schema_name from information_schema.schemata order by 1")


def list_objects(schema: str = "public") -> str:
    """List the tables and views of a schema."""
    return run(
        "select table_name, table_type from information_schema.tables "
        "where table_schema = %s order by 1",
        (schema,),
    )


def get_object_details(name: str, schema: str = "public") -> str:
    """List the columns of a table or view, with types and defaults."""
    return run(
        "select column_name, data_type, is_nullable, column_default "
        "from information_schema.columns where table_schema = %s and table_name = %s "
        "order by ordinal_position",
        (schema, name),
    )


def execute_sql(sql: str) -> str:
    """Run SQL in a transaction and return the rows of the last statement."""
    return run(sql)


def explain_query(sql: str) -> str:
    """Show the plan of a query without running it."""
    return run(f"explain {sql}")


def database_size() -> str:
    """Return the size of the database."""
    return run("select pg_size_pretty(pg_database_size(current_database())) as size")


def vacuum_table(name: str) -> str:
    """Refresh the planner's statistics of a table."""
    return run(f'analyze "{name}"')


TOOLS = (
    list_schemas,
    list_objects,
    get_object_details,
    execute_sql,
    explain_query,
    database_size,
    vacuum_table,
)


if __name__ == "__main__":
    server = MCPServer("postgres")
    for tool in TOOLS:
        server.tool()(tool)
    server.run()
