"""An image with the running Python and bash, made without a registry, and an engine for it."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

IMAGE = "localhost/gem-test:latest"
ENGINES = ("podman", "docker", "podman --runtime runc")
"""crun, podman's default, does not run on a machine with cgroups of both versions."""
PROGRAMS = ("bash", "cat", "ls", "mkdir", "sleep")
SKIPPED = {"__pycache__", "ensurepip", "idlelib", "site-packages", "test", "tkinter"}


@cache
def container_engine() -> tuple[str, str]:
    """Import the image and return (the engine that runs it, ""), or ("", why there is none)."""
    reasons = []
    archive = b""
    for engine in ENGINES:
        command = engine.split()
        if shutil.which(command[0]) is None or not all(shutil.which(c) for c in command[2:]):
            reasons.append(f"{engine}: not installed")
            continue
        archive = archive or _archive()
        _run([*command, "import", "-", IMAGE], archive)
        limits = ["--ulimit", "nofile=256:256", "--ulimit", "nproc=1024:1024"]
        done = _run([*command, "run", "--rm", "--network=none", *limits, IMAGE, "python3", "-V"])
        if done.returncode == 0:
            return engine, ""
        reasons.append(f"{engine}: {done.stderr.decode().strip()[-200:]}")
    return "", "; ".join(reasons)


def _run(command: list[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=data, capture_output=True, timeout=120)


def _archive() -> bytes:
    """Pack Python, its library, a few programs, and the shared libraries they need."""
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    library = Path(os.__file__).parent
    programs = [python, *(Path(os.path.realpath(shutil.which(name) or name)) for name in PROGRAMS)]
    modules = list((library / "lib-dynload").glob("*.so"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("tmp", "proc", "sys", "dev", "run", "usr/bin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path in {*programs, *_libraries([*programs, *modules])}:
            _add(archive, path)
        archive.add(library, str(library).lstrip("/"), filter=_wanted)
        for name, target in [("python3", python), ("bash", programs[1])]:
            if Path("/usr/bin", name) not in programs:
                link = tarfile.TarInfo(f"usr/bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, str(target)
                archive.addfile(link)
    return buffer.getvalue()


def _libraries(files: list[Path]) -> set[Path]:
    done = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True)
    return {Path(path) for path in re.findall(r"(/\S+\.so\S*)(?= \()", done.stdout)}


def _add(archive: tarfile.TarFile, path: Path) -> None:
    """Add a file under its path, with the contents of what it links to."""
    entry = archive.gettarinfo(os.path.realpath(path), str(path).lstrip("/"))
    with open(path, "rb") as file:
        archive.addfile(entry, file)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in SKIPPED else entry
