"""Repository: creates the git history of a task and reads the final one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from gem_tools.sandbox.homes import remove_tree

__all__ = ["GitState", "History", "write_repository"]

# The caches of the history are not read, nor what the repository configures.
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_CONFIG_COUNT": "5",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_KEY_1": "core.hooksPath",
    "GIT_CONFIG_VALUE_1": "/dev/null",
    "GIT_CONFIG_KEY_2": "core.fsmonitor",
    "GIT_CONFIG_VALUE_2": "false",
    "GIT_CONFIG_KEY_3": "core.commitGraph",
    "GIT_CONFIG_VALUE_3": "false",
    "GIT_CONFIG_KEY_4": "core.multiPackIndex",
    "GIT_CONFIG_VALUE_4": "false",
}
_AUTHOR = "Dana <dana@example.com>"


class History:
    """A stream of `git fast-import`: commits on branches, with fixed authors and dates."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: dict[str, int] = {}
        self.files: dict[str, dict[str, str]] = {"main": {}}
        self._mark = 0

    def commit(self, message: str, files: Mapping[str, str], branch: str = "main") -> None:
        """Add a commit that writes these files."""
        self._mark += 1
        when = f"{_AUTHOR} {1_900_000_000 + self._mark * 3600} +0000"
        self.lines += [f"commit refs/heads/{branch}", f"mark :{self._mark}"]
        self.lines += [f"author {when}", f"committer {when}", _data(message)]
        if branch in self.marks:
            self.lines.append(f"from :{self.marks[branch]}")
        for path, text in files.items():
            self.lines += [f"M 100644 inline {path}", _data(text)]
        self.marks[branch] = self._mark
        self.files[branch] = {**self.files[branch], **files}

    def branch(self, name: str, start: str = "main") -> None:
        """Start a branch at the last commit of another one."""
        self.marks[name] = self.marks[start]
        self.files[name] = dict(self.files[start])
        self.lines += [f"reset refs/heads/{name}", f"from :{self.marks[start]}", ""]

    def text(self) -> str:
        """Return the stream."""
        return "\n".join(self.lines) + "\n"


class GitState:
    """The final repository of an episode, read through a git directory of gem's own.

    The directory has the branches and the index of the repository, not its settings, hooks,
    filters and grafts: none of them may run a program here or hide a change.
    """

    def __init__(self, path: str, git_folder: str) -> None:
        self.path, self.environment = path, dict(_ENVIRONMENT)
        remove_tree(git_folder)  # of the previous episode
        # Run `init` outside `path`: it would raise if the model moved `path` away; later commands
        # return "" instead.
        parent = os.path.dirname(git_folder)
        _run(parent, self.environment, "init", "--quiet", "--bare", git_folder)
        self.environment |= {
            "GIT_DIR": git_folder,
            "GIT_OBJECT_DIRECTORY": os.path.join(path, ".git/objects"),
            "GIT_WORK_TREE": path,
        }
        for name in ("HEAD", "index", "packed-refs", "refs"):
            source, target = os.path.join(path, ".git", name), os.path.join(git_folder, name)
            if os.path.isdir(source):
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            elif os.path.isfile(source):
                shutil.copyfile(source, target, follow_symlinks=False)

    def git(self, *arguments: str) -> str:
        """Return the output of a git command without trailing space; "" if it fails."""
        try:
            return _run(self.path, self.environment, *arguments).rstrip()
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return ""

    def files(self, revision: str = "main") -> dict[str, str]:
        """Return all files of a revision, without trailing white space."""
        names = self.git("ls-tree", "-r", "--name-only", revision).splitlines()
        return {name: self.git("show", f"{revision}:{name}") for name in names}

    def subjects(self, revision: str = "main") -> list[str]:
        """Return the subjects of the commits, the newest first."""
        return self.git("log", "--format=%s", revision).splitlines()

    def branches(self) -> list[str]:
        """Return the local branches, sorted."""
        return self.git("for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def clean(self) -> bool:
        """Whether the working tree equals the checked-out commit."""
        return not self.git("status", "--porcelain") and bool(self.git("rev-parse", "HEAD"))

    def current(self) -> str:
        """Return the checked-out branch."""
        return self.git("symbolic-ref", "--short", "HEAD")


def write_repository(path: str, history: str) -> None:
    """Create a repository from a `git fast-import` stream and check out main."""
    os.makedirs(path)
    _run(path, _ENVIRONMENT, "init", "--quiet", "--initial-branch=main")
    _run(path, _ENVIRONMENT, "fast-import", "--quiet", stdin=history)
    _run(path, _ENVIRONMENT, "checkout", "--quiet", "--force", "main")


def _run(path: str, environment: Mapping[str, str], *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["git", "-C", path, *arguments],
        env=environment,
        input=stdin.encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}"
