"""Tests of `gem-rl new`: the project works as written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project import Installation, clean_env, install, run

from gem_core.__main__ import main


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["new", "number-maze", "--out", str(tmp_path / "maze")]) == 0
    assert "gem-rl check number_maze/env.py:NumberMaze" in capsys.readouterr().out
    return tmp_path / "maze"


def test_new_project_passes_the_checker_and_its_own_tests_at_once(project: Path) -> None:
    environment = clean_env(PYTHONPATH=os.pathsep.join(sys.path))
    for command in (
        ["gem_core", "check", "number_maze/env.py:NumberMaze"],
        ["pytest", "-q", "-p", "no:cacheprovider"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_installed_project_is_a_plugin(project: Path, tmp_path: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=project)
    installed: Installation = install(tmp_path, wheel, *(project / "dist").glob("*.whl"))
    listing = installed.command("envs", "coin", "boxes")
    assert "number_maze:NumberMaze-v0" in listing.stdout, listing.stderr
    checked = installed.command("check", "number_maze:NumberMaze-v0")
    assert checked.returncode == 0, checked.stdout


def test_every_file_has_its_names_filled_in(project: Path) -> None:
    files = [path for path in project.rglob("*") if path.is_file()]
    assert len(files) == 6
    assert not [path for path in files if "$" in path.read_text()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Number Maze", "is not a project name"),
        ("json", "belongs to Python or to an installed package"),
        ("class", "belongs to Python"),
        ("game", "the namespace of 'game:"),
    ],
)
def test_new_rejects_names_that_cannot_work(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", name, "--out", str(tmp_path / "new")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_new_overwrites_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "README.md").write_text("mine")
    assert main(["new", "number-maze", "--out", str(project)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert (project / "README.md").read_text() == "mine"
