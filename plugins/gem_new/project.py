"""Project: a plugin with one environment, its test and a training recipe, written from templates.

The templates are the files in `templates/`; `$name` and the like are replaced.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from gem_core.env.registry import list_envs
from gem_core.errors import ConfigError

__all__ = ["Project"]

_TEMPLATES = Path(__file__).with_name("templates")
_FILES = {
    "pyproject.txt": "pyproject.toml",
    "readme.txt": "README.md",
    "hooks.txt": "$package/__init__.py",
    "env.txt": "$package/env.py",
    "test_env.txt": "tests/test_env.py",
    "train.txt": "train.py",
}
"""Each template and the file it becomes. No tool takes a .txt for a module or for a project."""


@dataclass(frozen=True)
class Project:
    """The names of a project, all derived from one."""

    name: str
    """The name of the distribution and the folder, such as `number-maze`."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", self.name):
            raise ConfigError(
                f"{self.name!r} is not a project name; use lower-case letters, digits and '-', "
                "for example 'number-maze'"
            )
        if keyword.iskeyword(self.package) or importlib.util.find_spec(self.package) is not None:
            raise ConfigError(
                f"the name {self.package!r} belongs to Python or to an installed package; "
                "choose another"
            )
        taken = list_envs(f"{self.package}:*")
        if taken:
            raise ConfigError(f"the namespace of {taken[0]!r} is taken; choose another name")

    @property
    def package(self) -> str:
        """The import name and the namespace of the id."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The class of the environment."""
        return "".join(part.capitalize() for part in self.package.split("_"))

    @property
    def env_id(self) -> str:
        """The id of the environment."""
        return f"{self.package}:{self.class_name}-v0"

    def write(self, folder: Path) -> list[Path]:
        """Write the project into a new or empty folder and return the files."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists and is not empty; choose another --out")
        names = {
            "name": self.name,
            "package": self.package,
            "class_name": self.class_name,
            "env_id": self.env_id,
        }
        written = []
        for template, target in _FILES.items():
            path = folder / Template(target).substitute(names)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (_TEMPLATES / template).read_text(encoding="utf-8")
            path.write_text(Template(text).substitute(names), encoding="utf-8")
            written.append(path)
        return written
