"""Tests of `NEEDS` in conftest.py: tests with missing packages are collected only if named."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT, SUPPORT, clean_env

CONFTEST = ROOT / "tests" / "conftest.py"


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """Return a folder of tests; gem_x/deep, with its conftest, needs a missing package."""
    text = CONFTEST.read_text().replace(
        "NEEDS = {", 'NEEDS = {\n    "gem_x/deep": ("no_such_package",),', 1
    )
    (tmp_path / "conftest.py").write_text(text)
    deep = tmp_path / "gem_x" / "deep"
    deep.mkdir(parents=True)
    (deep / "conftest.py").write_text("import no_such_package\n")
    (deep / "test_deep.py").write_text("import no_such_package\ndef test_it(): ...\n")
    (tmp_path / "gem_x" / "test_light.py").write_text("def test_it(): ...\n")
    return tmp_path


def collected(tests: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        *arguments,
    ]
    env = clean_env(PYTHONPATH=str(SUPPORT))
    return subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [(), (".",), ("gem_x",), ("gem_x/test_light.py",)], ids=str)
def test_tests_with_missing_packages_are_not_collected_but_named(
    tests: Path, arguments: tuple[str, ...]
) -> None:
    done = collected(tests, *arguments)
    assert done.returncode == 0, done.stdout
    assert "gem_x/deep needs no_such_package" in done.stdout
    assert "1 test collected" in done.stdout


@pytest.mark.parametrize(
    "argument", ["gem_x/deep", "gem_x/deep/test_deep.py", "gem_x/deep/test_deep.py::test_it"]
)
def test_named_tests_with_missing_packages_show_the_import_error(
    tests: Path, argument: str
) -> None:
    done = collected(tests, argument)
    assert done.returncode != 0
    assert "No module named 'no_such_package'" in done.stdout + done.stderr


def test_every_entry_of_needs_exists() -> None:
    spec = importlib.util.spec_from_file_location("conftest_of_all", CONFTEST)
    assert spec is not None and spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    places = (*conftest.NEEDS, *conftest.PROGRAMS)
    assert [place for place in places if not (ROOT / "tests" / place).exists()] == []
