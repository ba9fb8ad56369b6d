"""Scratch folder: the data of running episodes, removed when gem ends, however it ends.

A small process waits for the end of gem and then removes the folder: a killed process cannot.
"""

from __future__ import annotations

import os
import subprocess
import threading

from gem_tools.sandbox.homes import make_home

__all__ = ["scratch_folder"]

# again, because gem may remove the folder at the same time
_WATCH = 'cat > /dev/null; for i in 1 2 3 4 5; do rm -rf "$1" && exit; sleep 1; done'
_folders: dict[int, str] = {}
_watchers: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def scratch_folder() -> str:
    """Return the scratch folder of this process."""
    with _lock:
        pid = os.getpid()
        if pid not in _folders:
            folder = make_home()
            os.chmod(folder, 0o711)  # servers run as other users
            all_homes = os.path.dirname(folder)  # useless after the end of this process
            # The input of the watcher ends with this process. Its own session spares it the
            # signals that a terminal sends to gem.
            _watchers.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", _WATCH, "gem-watcher", all_homes],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            )
            _folders[pid] = folder
        return _folders[pid]
