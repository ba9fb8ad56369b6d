"""Tests of the rule on skips in conftest.py: with CI=true a skip fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from project import ROOT, SUPPORT, clean_env

SKIPPED_TESTS = """
import pytest

def test_skipped_at_run_time():
    pytest.skip("REASON")

@pytest.mark.skipif(True, reason="REASON")
def test_skipped_by_mark(): ...

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""
SKIPPED_MODULE = """
import pytest

pytest.importorskip("no_such_module", reason="REASON")
"""


def outcome(folder: Path, reason: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(SKIPPED_TESTS.replace("REASON", reason))
    (folder / "test_module.py").write_text(SKIPPED_MODULE.replace("REASON", reason))
    env = {k: v for k, v in clean_env().items() if k != "CI"}
    env |= {"PYTHONPATH": str(SUPPORT), **variables}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
        "--continue-on-collection-errors",
    ]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_skip_fails_in_ci(tmp_path: Path) -> None:
    done = outcome(tmp_path, "the moon is full", CI="true")
    assert done.returncode == 1
    assert "1 failed, 1 xfailed, 2 errors in" in done.stdout
    assert done.stdout.count("skipped in CI: the moon is full. Install what it needs") >= 3


def test_skip_is_a_skip_outside_ci(tmp_path: Path) -> None:
    done = outcome(tmp_path, "the moon is full")
    assert done.returncode == 0
    assert "3 skipped, 1 xfailed in" in done.stdout


def test_allowed_skip_reason_is_accepted_in_ci(tmp_path: Path) -> None:
    done = outcome(tmp_path, "needs a GPU with 80 GB", CI="true")
    assert done.returncode == 0
    assert "3 skipped, 1 xfailed in" in done.stdout
    assert "needs a GPU with 80 GB" in done.stdout
