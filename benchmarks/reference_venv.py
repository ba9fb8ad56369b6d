"""Reference venv: an environment of its own for the reference implementation, so that both can be measured in one run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["REFERENCE", "reference_python"]

REFERENCE = "gem-llm==0.1.0"
_ALSO = ("requests", "pandas")  # it imports them without asking for them


def reference_python() -> Path:
    """The interpreter of an environment with the reference; `GEM_REFERENCE_PYTHON` names one that is there already."""
    given = os.environ.get("GEM_REFERENCE_PYTHON")
    if given:
        return Path(given)
    folder = (
        Path(tempfile.gettempdir())
        / f"gem-reference-{sys.version_info.major}.{sys.version_info.minor}"
    )
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", REFERENCE, *_ALSO], check=True
        )
        (folder / "ready").touch()
    return python
