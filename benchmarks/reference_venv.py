"""Virtual environment for the reference implementation, to measure both in one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["REFERENCE", "reference_python"]

REFERENCE = "gem-llm==0.1.0"
_UNDECLARED = ("requests", "pandas")
"""Packages that the reference imports without declaring them."""


def reference_python() -> Path:
    """Return the interpreter of the reference; make its virtual environment first if necessary.

    `GEM_REFERENCE_PYTHON` names an existing interpreter instead.
    """
    existing = os.environ.get("GEM_REFERENCE_PYTHON")
    if existing:
        return Path(existing)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path(tempfile.gettempdir()) / f"gem-reference-{version}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", REFERENCE, *_UNDECLARED]
        subprocess.run(install, check=True)
        (folder / "ready").touch()
    return python
