"""Homes: the folders in which programs of the fallback run, and other folders for temporary files.

A gem process keeps its homes in one folder, which it removes at its exit. A killed process cannot
do that, so the folder has a locked file: the next gem process removes the folders of this user
whose lock is free.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import stat
import tempfile
import threading
from pathlib import Path

__all__ = ["make_home", "remove_tree"]

_PREFIX = "gem-sandbox-"
_LOCK = "lock"
_folders: dict[int, str] = {}
"""The folder of each process; a forked process starts its own."""
_making = threading.Lock()


def make_home() -> str:
    """Make an empty folder that does not outlive this process, or not for long if it is killed."""
    return tempfile.mkdtemp(prefix="home-", dir=_folder())


def _folder() -> str:
    with _making:
        pid = os.getpid()
        if pid not in _folders:
            _remove_abandoned()
            folder = tempfile.mkdtemp(prefix=_PREFIX)
            os.chmod(folder, 0o711)  # programs may run as other users
            _hold(Path(folder))
            _folders[pid] = folder
        return _folders[pid]


def _hold(folder: Path) -> None:
    """Lock a file of a folder until this process ends."""
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if _locked(lock):
        new.rename(folder / _LOCK)  # others see the file only once it is locked


def _locked(descriptor: int) -> bool:
    import fcntl  # not on Windows, where the sandbox raises a ConfigError

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds it, or the file system has no locks
        return False
    return True


def _remove_abandoned() -> None:
    """Remove the folders of this user's processes that ended without removing them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _locked(lock):
                    remove_tree(str(folder))
            finally:
                os.close(lock)


@atexit.register
def _remove_own() -> None:
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        remove_tree(folder)


def remove_tree(path: str) -> None:
    """Remove a folder that a program filled: of any depth, with any modes.

    Recursion would fail for deep folders. This function moves each subfolder up to `path`, and
    removes its parent. It ignores errors.
    """
    numbers = itertools.count()
    with contextlib.suppress(OSError):
        root = _open_folder(path, None)
        try:
            pending = [name for name in os.listdir(root) if not _removed(name, root)]
            while pending:
                name = pending.pop()
                with contextlib.suppress(OSError):
                    folder = _open_folder(name, root)
                    try:
                        for child in os.listdir(folder):
                            if not _removed(child, folder):
                                os.close(_open_folder(child, folder))  # its ".." will change
                                new_name = f"gem-{next(numbers)}-{os.urandom(8).hex()}"
                                os.rename(child, new_name, src_dir_fd=folder, dst_dir_fd=root)
                                pending.append(new_name)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=root)
        finally:
            os.close(root)
    with contextlib.suppress(OSError):  # also after an error: another process may remove it, too
        os.rmdir(path)


def _removed(name: str, folder: int) -> bool:
    """Remove a file; return False for a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
    return True


def _open_folder(name: str, parent: int | None) -> int:
    """Open a folder, not a link to one, and give its owner every right if that fails."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if os.geteuid() != 0:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
            os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)
