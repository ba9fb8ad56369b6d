"""Families: the servers, the initial data and the final state of each suite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from gem_envs.mcp_suite.boxes import DATA, SERVERS, boxed_server
from gem_envs.mcp_suite.pool import Family, Slot
from gem_envs.mcp_suite.repository import GitState, write_repository
from gem_envs.mcp_suite.sql import SqliteState, SqlSetup, write_database
from gem_envs.mcp_suite.task import Template

__all__ = ["family_named", "templates_of"]


class SqliteFamily(Family):
    """A SQLite database, served by a program of gem."""

    name = "Sqlite"
    server = "sqlite.py"
    file = "data.db"

    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        script, arguments = str(SERVERS / self.server), [f"{DATA}/{self.file}"]
        return {self.name.lower(): boxed_server(script, arguments, {DATA: slot.folder}, slot.uid)}

    def prepare(self, slot: Slot, setup: SqlSetup) -> None:
        write_database(os.path.join(slot.folder, self.file), setup.script)
        slot.own_all()
        slot.setup = setup

    def state(self, slot: Slot) -> SqliteState:
        return SqliteState(os.path.join(slot.folder, self.file), slot.setup)


class WorkplaceFamily(SqliteFamily):
    """Mail, a calendar, files and a CRM in a SQLite database, served by a program of gem."""

    name = "Workplace"
    server = "workplace.py"


class FilesFamily(Family):
    """A folder, served by a program of gem with the tools of the reference server."""

    name = "Files"

    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        return {"files": _files_server(slot)}

    def prepare(self, slot: Slot, setup: Mapping[str, str]) -> None:
        write_files(slot.folder, setup)
        slot.own_all()

    def state(self, slot: Slot) -> dict[str, str]:
        return read_files(slot.folder)


class GitFamily(Family):
    """A repository, served by `mcp-server-git` from PyPI, and its files."""

    name = "Git"

    def servers(self, slot: Slot) -> Mapping[str, Mapping[str, Any]]:
        repository = f"{DATA}/repo"
        git = boxed_server(
            "mcp_server_git:main", ["--repository", repository], {DATA: slot.folder}, slot.uid
        )
        return {"git": git, "files": _files_server(slot)}

    def prepare(self, slot: Slot, setup: str) -> None:
        write_repository(os.path.join(slot.folder, "repo"), setup)
        slot.own_all()

    def state(self, slot: Slot) -> GitState:
        # beside the folder of the slot, which the model can write to
        return GitState(os.path.join(slot.folder, "repo"), f"{slot.folder}.git")


def _files_server(slot: Slot) -> dict[str, Any]:
    return boxed_server(str(SERVERS / "files.py"), [DATA], {DATA: slot.folder}, slot.uid)


def write_files(folder: str, files: Mapping[str, str]) -> None:
    """Write files; a path that ends in a slash is a folder."""
    for path, text in files.items():
        target = os.path.join(folder, path)
        os.makedirs(target if path.endswith("/") else os.path.dirname(target), exist_ok=True)
        if not path.endswith("/"):
            with open(target, "w", encoding="utf-8", newline="") as file:
                file.write(text)


def read_files(folder: str) -> dict[str, str]:
    """Return all regular files below a folder; trailing white space of a file does not count."""
    files = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, folder)
            if os.path.islink(path) or not os.path.isfile(path):
                files[relative] = "(not a regular file)"
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                files[relative] = file.read(1 << 20).rstrip()
    return files


@cache
def family_named(suite: str) -> Family:
    """Return the family of a suite; PostgreSQL's needs psycopg."""
    if suite == "Postgres":
        from gem_envs.mcp_suite.postgres import PostgresFamily

        return PostgresFamily()
    families: dict[str, Family] = {
        family.name: family
        for family in (SqliteFamily(), GitFamily(), FilesFamily(), WorkplaceFamily())
    }
    return families[suite]


def templates_of(suite: str) -> Mapping[str, Template]:
    """Return the templates of a suite by name."""
    module = import_module(f"gem_envs.mcp_suite.{suite.lower()}_tasks")
    templates: Mapping[str, Template] = module.TEMPLATES
    return templates
