"""MCP server of a folder, with the tool names of the reference file system server.

gem never imports it. Usage: files.py FOLDER. The folder `.git` is closed: the git server owns it.
"""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

root = Path(sys.argv[1])


def inside(path: str) -> Path:
    """Return a path of the folder, or raise the error that the model sees."""
    target = Path(os.path.normpath(root / path))
    if not target.resolve().is_relative_to(root) or ".git" in target.parts:
        raise ToolError(f"access denied: {path} is outside of {root}, or in .git")
    return target


def checked(action: Any, *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(str(error)) from error


def read_text_file(path: str) -> str:
    """Return the text of a file."""
    return str(checked(inside(path).read_text, "utf-8"))


def read_multiple_files(paths: list[str]) -> str:
    """Return the texts of several files, each after its path."""
    return "\n".join(f"{path}:\n{checked(inside(path).read_text, 'utf-8')}" for path in paths)


def write_file(path: str, content: str) -> str:
    """Create a file, or replace its text."""
    checked(inside(path).write_text, content, "utf-8")
    return f"wrote {path}"


def edit_file(path: str, old_text: str, new_text: str) -> str:
    """Replace a text that occurs exactly once in a file."""
    text = checked(inside(path).read_text, "utf-8")
    if text.count(old_text) != 1:
        raise ToolError(f"the old text occurs {text.count(old_text)} times in {path}, not once")
    checked(inside(path).write_text, text.replace(old_text, new_text), "utf-8")
    return f"edited {path}"


def create_directory(path: str) -> str:
    """Create a folder and its parents."""
    checked(lambda: inside(path).mkdir(parents=True, exist_ok=True))
    return f"created {path}"


def list_directory(path: str) -> str:
    """List a folder: [DIR] or [FILE] and the name, one per line."""
    names = sorted(checked(os.listdir, inside(path)))
    lines = [f"[{'DIR' if (inside(path) / name).is_dir() else 'FILE'}] {name}" for name in names]
    return "\n".join(lines) or "(empty)"


def directory_tree(path: str) -> str:
    """Return all files below a folder as a JSON list."""
    base = inside(path)
    names = [str(p.relative_to(base)) for p in sorted(base.rglob("*")) if p.is_file()]
    return json.dumps([name for name in names if ".git" not in Path(name).parts])


def move_file(source: str, destination: str) -> str:
    """Move or rename a file or folder; the destination must not exist."""
    if inside(destination).exists():
        raise ToolError(f"{destination} exists")
    checked(inside(source).rename, inside(destination))
    return f"moved {source} to {destination}"


def search_files(path: str, pattern: str) -> str:
    """Find files and folders below a folder by a pattern such as *.txt."""
    base = inside(path)
    found = [str(p) for p in sorted(base.rglob("*")) if fnmatch(p.name, pattern)]
    return "\n".join(p for p in found if ".git" not in Path(p).parts) or "(nothing found)"


def get_file_info(path: str) -> str:
    """Return the kind and the size of a file."""
    status = checked(inside(path).stat)
    kind = "directory" if inside(path).is_dir() else "file"
    return json.dumps({"kind": kind, "size": status.st_size})


def list_allowed_directories() -> str:
    """Return the folder that this server may access."""
    return str(root)


TOOLS = (
    read_text_file,
    read_multiple_files,
    write_file,
    edit_file,
    create_directory,
    list_directory,
    directory_tree,
    move_file,
    search_files,
    get_file_info,
    list_allowed_directories,
)


if __name__ == "__main__":
    server = MCPServer("files")
    for tool in TOOLS:
        server.tool()(tool)
    server.run()
