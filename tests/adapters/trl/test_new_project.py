"""The project that `gem-rl new` writes trains in TRL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from project import clean_env

from gem_core.__main__ import main


def test_recipe_of_a_new_project_trains_and_saves_a_model(tmp_path: Path) -> None:
    project = tmp_path / "boxes"
    assert main(["new", "coin-boxes", "--out", str(project)]) == 0
    # not installed: the recipe registers the environment as the plugin would
    program = "import coin_boxes; from gem_core import register; "
    program += "coin_boxes.register_environments(register); import runpy, sys; "
    program += "sys.argv[0] = 'train.py'; runpy.run_path('train.py', run_name='__main__')"
    small = ["--updates", "1", "--episodes", "4", "--warm-up", "1"]
    done = subprocess.run(
        [sys.executable, "-c", program, *small],
        cwd=project,
        env=clean_env(PYTHONPATH=":".join([str(project), *sys.path]), TRL_EXPERIMENTAL_SILENCE="1"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "runs/train/model/config.json").is_file()
    assert (project / "runs/train/model/tokenizer.json").is_file()
    assert len((project / "runs/train/episodes.jsonl").read_text().splitlines()) == 5
