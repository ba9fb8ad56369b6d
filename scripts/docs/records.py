"""Records page: tables of the record types, filled into docs/records.md."""

from __future__ import annotations

import re

from fields import cell, code, fields_of, table_of_fields

__all__ = ["with_tables"]

_MARK = re.compile(
    r"^<!-- (fields|values): (\S+) -->\n(?:.*?^<!-- end -->\n)?", re.DOTALL | re.MULTILINE
)


def with_tables(markdown: str) -> str:
    """Write the tables between `<!-- fields: module:Class -->` (or `values`) and `<!-- end -->`."""

    def table(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]}: {mark[2]} -->\n\n{_table(mark[1], mark[2])}\n\n<!-- end -->\n"

    return _MARK.sub(table, markdown)


def _table(kind: str, path: str) -> str:
    if kind == "fields":
        return table_of_fields(path)
    rows = [
        f"| {code(each.default.strip(chr(39)))} | {cell(each.text)} |" for each in fields_of(path)
    ]
    return "\n".join(["| Value | Meaning |", "|---|---|", *rows])
