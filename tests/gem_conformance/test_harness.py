"""Tests of the harness: processes of a conformance run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gem_conformance.harness import start_ranks

RANK = """
import os, pickle, sys
assert __name__ == "__main__" and __spec__.name == "rank_program"
value = pickle.load(open(sys.argv[1], "rb"))
pickle.dump((value, os.environ["RANK"]), open(sys.argv[2], "wb"))
"""


def test_ranks_do_not_import_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in ("pickle", "runpy", "typing"):
        (work / f"{name}.py").write_text("open('ran', 'w')")
    (tmp_path / "rank_program.py").write_text(RANK)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *filter(None, sys.path)])
    monkeypatch.chdir(work)
    assert start_ranks("rank_program", ["a", "b"], timeout=60) == [("a", "0"), ("b", "1")]
    assert not (work / "ran").exists()
