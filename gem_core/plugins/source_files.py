"""Source files: import a Python file by its path, for names such as `lock.py:Lock`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from gem_core.errors import GemError, RegistrationError

__all__ = ["load_file"]

# Environments are made on several threads; reentrant, because a file may load another one.
_lock = threading.RLock()


def load_file(path: str) -> ModuleType:
    """Import a file once per process; a file that is already imported, such as the running script,
    is not imported again. Its folder joins `sys.path`, so it can import its neighbours.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise RegistrationError(f"there is no file {path!r} (in {Path.cwd()})")
    with _lock:  # a thread must not get a module that another one is still importing
        return _load(file, path)


def _load(file: Path, path: str) -> ModuleType:
    for module in list(sys.modules.values()):
        origin = getattr(module, "__file__", None)
        if origin and os.path.basename(origin) == file.name and Path(origin).resolve() == file:
            return module
    try:
        return _import(file)
    except GemError:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)
        ]
        place = f", line {lines[-1]}" if lines else ""
        raise RegistrationError(
            f"{path} cannot be imported: {type(error).__name__}: {error}{place}"
        ) from error


def _import(file: Path) -> ModuleType:
    """Import a file under its own name, so `import NAME` finds it, unless that name is taken."""
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").is_file():  # a module of a package
        folder, name = folder.parent, f"{folder.name}.{name}"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: the folder must not hide installed packages
    found = None
    with suppress(ModuleNotFoundError):  # the package of that name is another one
        found = importlib.util.find_spec(name)
    if found is not None and found.origin and Path(found.origin).resolve() == file:
        return importlib.import_module(name)
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
