"""The project as a user sees it: its folders, and gem installed in a virtual environment."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
SOURCES = tuple(str(ROOT / folder) for folder in ("", "plugins", "adapters"))
"""The folders with the packages of the checkout, for PYTHONPATH."""


@dataclass(frozen=True)
class Installation:
    """A virtual environment with gem."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter of the virtual environment."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def pip(self, *args: str | Path) -> None:
        """Install packages with the outer pip, because creating another pip is slow."""
        pip = (sys.executable, "-m", "pip", "--python", self.python)
        run(*pip, "install", "--quiet", "--no-compile", *args)

    def command(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `gem-rl` without checking its exit code."""
        return self._run([self.python.with_name("gem-rl"), *args], env)

    def run_python(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python code without checking its exit code."""
        return self._run([self.python, "-c", code], env)

    def _run(
        self, command: list[str | Path], env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        # Not in the checkout, whose packages Python would import first.
        return subprocess.run(
            command,
            cwd=self.folder,
            env=clean_env(**env),
            capture_output=True,
            text=True,
            timeout=120,
        )


def clean_env(**more: str) -> dict[str, str]:
    """Return the environment variables without those that select packages and plugins."""
    selecting = ("PYTHONPATH", "GEM_", "VIRTUAL_ENV")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(selecting)}, **more}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output; raise with the output if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_env(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder: Path, *packages: str | Path) -> Installation:
    """Create a virtual environment with these packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    installation = Installation(folder / "venv")
    installation.pip(*packages)
    return installation
