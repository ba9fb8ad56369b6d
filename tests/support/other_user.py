"""Runs a program with gem's packages as a user without rights, if the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

__all__ = ["run_as_nobody"]

_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def run_as_nobody(program: str, *packages: str) -> subprocess.CompletedProcess[str]:
    """Run a program as `nobody`; it can import these packages and what gem's core needs."""
    if os.geteuid() != 0:
        paths = os.pathsep.join(filter(None, sys.path))
        return _run([sys.executable, "-B", "-c", program], {**os.environ, "PYTHONPATH": paths})
    with _readable_copy("gem_core", "pluggy", "packaging", *packages) as folder:
        # The interpreter of the tests may be below /root; Debian's is not.
        command = [*_NOBODY, "/usr/bin/python3", "-B", "-c", program]
        return _run(command, {"PATH": "/usr/bin:/bin", "HOME": folder, "PYTHONPATH": folder})


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, timeout=120
    )


@contextmanager
def _readable_copy(*packages: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name in packages:
            spec = find_spec(name)
            assert spec is not None and spec.origin is not None
            shutil.copytree(Path(spec.origin).parent, Path(folder, name))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield folder
