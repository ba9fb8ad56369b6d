"""Python files imported by their paths."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gem_core.plugins.source_files import load_file


def test_threads_wait_for_a_file_that_another_one_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the second thread gets a module without its classes."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "slow_to_import.py"
    path.write_text("import time\ntime.sleep(0.2)\n\nclass Lock:\n    pass\n")
    with ThreadPoolExecutor(4) as threads:
        modules = list(threads.map(lambda _: load_file(str(path)), range(4)))
    monkeypatch.delitem(sys.modules, modules[0].__name__)
    assert len({id(module.Lock) for module in modules}) == 1
