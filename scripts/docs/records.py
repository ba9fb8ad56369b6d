"""Records page: tables of the record types, filled into docs/records.md."""

from __future__ import annotations

import re

from fields import cell, code, fields_of, table_of_fields

__all__ = ["with_tables"]

_MARK = re.compile(r"^<!-- (fields|values): (\S+) -->$", re.MULTILINE)


def with_tables(markdown: str) -> str:
    """Replace `<!-- fields: module:Class -->` and `<!-- values: module:Enum -->` by tables."""
    return _MARK.sub(lambda mark: _table(mark[1], mark[2]), markdown)


def _table(kind: str, path: str) -> str:
    if kind == "fields":
        return table_of_fields(path)
    rows = [
        f"| {code(each.default.strip(chr(39)))} | {cell(each.text)} |" for each in fields_of(path)
    ]
    return "\n".join(["| Value | Meaning |", "|---|---|", *rows])
