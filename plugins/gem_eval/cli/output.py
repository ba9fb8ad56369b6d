"""Output paths of the commands, checked before the work starts."""

from __future__ import annotations

from pathlib import Path

from gem_core.errors import ConfigError, RecordError

__all__ = ["check_file", "check_folder"]


def check_file(out: Path, *sources: Path) -> None:
    """Raise `ConfigError` if writing `out` would replace one of the sources or another record."""
    from gem_core.records.file import read_header

    if not out.is_file():
        return
    if any(source.exists() and out.samefile(source) for source in sources):
        raise ConfigError(f"{out} is the input of the command; choose another path with --out")
    try:
        read_header(out)
    except RecordError:
        return
    raise ConfigError(
        f"{out} is an episode record, which would be lost; choose another path with --out"
    )


def check_folder(out: Path) -> None:
    """Raise `ConfigError` if the folder cannot be created because a file has its name."""
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"--out must be a folder, but {existing} is a file")
