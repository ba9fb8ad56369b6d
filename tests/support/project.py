"""The project from outside: its root, and gem installed in a virtual environment as a user has it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
SOURCES = tuple(str(ROOT / folder) for folder in ("", "plugins", "adapters"))
"""Where the packages of the checkout are, for the path of a program that a test starts."""


@dataclass(frozen=True)
class Installation:
    """A virtual environment of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def pip(self, *args: str | Path) -> None:
        """Installs into it, with the pip outside: a pip of its own would take longer to make than all the rest."""
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--quiet",
            "--no-compile",
            *args,
        )

    def command(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """What `gem-rl` does in it; the exit code is the caller's business."""
        return self._run([self.python.with_name("gem-rl"), *args], env)

    def run_python(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        """What a program does in it; the exit code is the caller's business."""
        return self._run([self.python, "-c", code], env)

    def _run(
        self, command: list[str | Path], env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        # Another folder than the checkout, whose packages would be found first.
        return subprocess.run(
            command,
            cwd=self.folder,
            env=clean_env(**env),
            capture_output=True,
            text=True,
            timeout=120,
        )


def clean_env(**more: str) -> dict[str, str]:
    """The environment variables there are, without what would change which packages and plugins are found."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHONPATH", "GEM_", "VIRTUAL_ENV"))
    }
    return {**kept, **more}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Runs a command that has to succeed; what it printed is shown where it does not."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_env(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder: Path, *what: str | Path) -> Installation:
    """A new virtual environment with these packages."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    made = Installation(folder / "venv")
    made.pip(*what)
    return made
