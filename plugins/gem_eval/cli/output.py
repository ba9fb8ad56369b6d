"""Output paths of the commands, checked before the work starts."""

from __future__ import annotations

from pathlib import Path

from gem_core.errors import ConfigError, RecordError

__all__ = ["check_file", "check_folder"]


def check_file(out: Path, *sources: Path) -> None:
    """Raise `ConfigError` if writing `out` would replace one of the sources or another record."""
    from gem_core.records.file import NotARecordError, read_header

    try:
        if not out.is_file():
            return
        is_source = any(source.exists() and out.samefile(source) for source in sources)
        with out.open("rb") as stream:
            is_compressed = stream.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise RecordError(f"cannot write {out}: {error}") from error
    if is_source:
        raise ConfigError(f"{out} is the input of the command; choose another path with --out")
    if out.suffix == ".gz" and not is_compressed:  # an earlier dataset, which is plain text
        return
    try:
        read_header(out)
    except NotARecordError:
        return
    except RecordError:
        pass  # a record of a newer gem, or a damaged one
    raise ConfigError(
        f"{out} is an episode record, which would be lost; choose another path with --out"
    )


def check_folder(out: Path) -> None:
    """Raise `ConfigError` if the folder cannot be created because a file has its name."""
    try:
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
        is_folder = existing.is_dir()
    except OSError as error:
        raise RecordError(f"cannot write to {out}: {error}") from error
    if not is_folder:
        raise ConfigError(f"--out must be a folder, but {existing} is a file")
