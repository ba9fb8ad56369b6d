"""Environment ids of the terminal tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["LEVELS", "TERMINAL_KINDS", "register_terminal"]

LEVELS = ("easy", "medium", "hard")

TERMINAL_KINDS = {
    "CountErrors": ("easy", "count the lines of log files"),
    "SumColumn": ("easy", "sum over a table"),
    "UniqueAddresses": ("easy", "sort and remove duplicates"),
    "Redact": ("easy", "replace every mail address in text files"),
    "Rename": ("easy", "rename files by a pattern"),
    "CleanUp": ("easy", "delete some files and no others"),
    "EditConfig": ("easy", "change one setting"),
    "FixJson": ("easy", "make a configuration file valid JSON again"),
    "SortPhotos": ("easy", "move files into folders"),
    "MakeBackup": ("easy", "pack a folder into an archive, except some files"),
    "GitUntrack": ("easy", "stop tracking generated files"),
    "StopProcess": ("easy", "stop one of several services"),
    "FixScript": ("medium", "fix a program"),
    "JsonReport": ("medium", "turn JSON into a table"),
    "JoinTables": ("medium", "join two tables by a column"),
    "SlowRequests": ("medium", "rank the requests of an access log"),
    "Permissions": ("medium", "set modes of files"),
    "NewestRelease": ("medium", "find the highest version and link to it"),
    "FindInArchive": ("medium", "find a file in an archive"),
    "RotateLogs": ("medium", "compress old logs and delete the oldest"),
    "MergeEnv": ("medium", "add the missing settings to an environment file"),
    "FixMakefile": ("medium", "repair a build"),
    "GitRevert": ("medium", "revert one commit of a repository"),
    "ServeFolder": ("medium", "serve a folder over HTTP"),
    "RestartService": ("medium", "change the configuration of a running service"),
    "FixPackage": ("hard", "repair the imports of a Python package"),
    "FixTests": ("hard", "repair functions until their unit tests pass"),
    "RestoreParts": ("hard", "put a split archive together, by checksums"),
    "ErrorBursts": ("hard", "find the worst minute in logs of two formats"),
    "GitResolve": ("hard", "merge a branch that conflicts"),
    "GitRecover": ("hard", "recover a deleted branch"),
    "GitBisect": ("hard", "find the commit that broke a program"),
    "PortConflict": ("hard", "free a port and start a service on it"),
    "FixService": ("hard", "repair and start a service"),
}
"""The level and the summary of each kind of task."""


def register_terminal(register: Callable[..., Any]) -> None:
    """Register an id per kind of task, one per level, and one that draws any kind."""
    settings: dict[str, dict[str, Any]] = {
        "terminal:Any-v0": {"summary": "a task in a persistent bash session, of any kind"}
    }
    for level in LEVELS:
        settings[f"terminal:Any-v0-{level}"] = {
            "kwargs": {"level": level},
            "summary": f"a task in a persistent bash session, of any {level} kind",
        }
    for kind, (_, summary) in TERMINAL_KINDS.items():
        settings[f"terminal:{kind}-v0"] = {
            "kwargs": {"kind": kind},
            "summary": f"{summary}, in a persistent bash session",
        }
    for id, setting in settings.items():
        register(
            id,
            "gem_envs.terminal.env:Terminal",
            kwargs={**setting.get("kwargs", {}), "max_turns": 15},
            summary=setting["summary"],
            turns=15,
            reward="terminal: 1 if every test of the result passes",
            data="generated; needs bubblewrap, git and make",
            deterministic=False,
            tags=("shell", "bubblewrap"),
        )
