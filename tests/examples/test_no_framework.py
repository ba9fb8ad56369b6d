"""The recipe without a framework, run as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from project import ROOT

from gem_core import GemError, token_sequences
from gem_core.records.file import read_episodes

RECIPE = ROOT / "examples" / "no_framework_rebn.py"
SMALL = ["--updates", "2", "--episodes", "8", "--eval-episodes", "8"]


def command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(RECIPE), "--out", str(out), *arguments]


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(out, *arguments), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def recipe():
    """The recipe in this process: starting torch for each of many short runs would take minutes."""
    spec = importlib.util.spec_from_file_location("no_framework_rebn", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_it_learns(tmp_path):
    """Fewer updates than by default, since this is a test: success rises clearly all the same."""
    done = run(tmp_path, "--updates", "25", "--eval-episodes", "128")
    assert done.returncode == 0, done.stderr
    lines = metrics(tmp_path)
    assert [m["step"] for m in lines] == list(range(25))
    success = [m["success"] for m in lines]
    assert sum(success[-5:]) / 5 > sum(success[:5]) / 5 + 0.1
    assert "held-out seeds" in done.stdout


def test_what_it_writes(tmp_path):
    out = tmp_path / "new" / "folder"
    done = run(out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in out.iterdir()} == {"metrics.jsonl", "curve.png", "episodes.jsonl"}
    for line in metrics(out):
        assert {"step", "success", "return_mean", "turns_mean", "tokens", "loss", "grad_norm", "seconds"} <= set(line)
        assert 0 <= line["success"] <= 1
        assert line["tokens"] > 0
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    episodes = list(read_episodes(out / "episodes.jsonl"))
    assert len(episodes) == 8
    assert sum(sum(view.mask) for e in episodes for view in token_sequences(e)) == metrics(out)[-1]["tokens"]
    assert {t.versions for e in episodes for t in e.turns} == {(1, 1)}


def test_a_second_run_overwrites_only_when_told_to(recipe, tmp_path):
    def play(out, *arguments):
        return recipe.train(recipe.parse_args(["--out", str(out), *SMALL, *arguments]))

    assert play(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(GemError, match="--overwrite"):
        play(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before
    assert play(tmp_path, "--overwrite", "--updates", "1", "--save-model")
    assert len(metrics(tmp_path)) == 1
    assert play(tmp_path / "from_saved", "--model", str(tmp_path / "model"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--advantage", "grpo", "--samples", "4"],
        ["--advantage", "rloo", "--samples", "2", "--horizon", "2,3@1"],
        ["--advantage", "reinforce++", "--wrappers", "react"],
        ["--env", "game:GuessTheNumber-v0-easy + 2*game:GuessTheNumber-v0-hard", "--rows", "3", "--temperature", "0.8"],
    ],
)
def test_other_settings_run(recipe, tmp_path, arguments):
    assert recipe.train(recipe.parse_args(["--out", str(tmp_path), *SMALL, *arguments]))
    assert len(metrics(tmp_path)) == 2


def test_the_gradient_does_not_depend_on_how_rows_are_shared_out(recipe, tmp_path):
    found = []
    for rows in ("3", "64"):
        recipe.train(recipe.parse_args(["--out", str(tmp_path / rows), *SMALL, "--rows", rows]))
        found.append(metrics(tmp_path / rows))
    for few, many in zip(*found):
        assert few["tokens"] == many["tokens"]
        assert few["loss"] == pytest.approx(many["loss"], rel=1e-3, abs=1e-6)
        assert few["grad_norm"] == pytest.approx(many["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "game:GuesTheNumber-v0-easy"], "did you mean"),
        (["--wrappers", "reakt"], "react"),
        (["--advantage", "ppo"], "no advantage estimator"),
        (["--advantage", "gae"], "no critic"),
        (["--advantage", "grpo"], "--samples 2 or more"),
        (["--samples", "3"], "multiple of --samples"),
        (["--horizon", "two"], "horizon schedule"),
        (["--model", "no/such/folder"], "model folder"),
        (["--updates", "0"], "--updates must be 1 or more"),
        (["--learning-rate", "0"], "--learning-rate"),
        (["--temperature", "0"], "--temperature"),
        (["--gamma", "1.5"], "--gamma"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(recipe, tmp_path, arguments, said):
    with pytest.raises(GemError, match=said) as refused:
        recipe.train(recipe.parse_args(["--out", str(tmp_path / "out"), *SMALL, *arguments]))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_an_error_is_one_line(tmp_path):
    done = run(tmp_path, *SMALL, "--env", "game:GuesTheNumber-v0-easy")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_ctrl_c_keeps_what_was_done(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "--updates", "10000", "--episodes", "8", "--eval-episodes", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    waited = time.monotonic() + 120
    while not ((tmp_path / "metrics.jsonl").exists() and len(metrics(tmp_path)) >= 3) and time.monotonic() < waited:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted after" in said
    assert "Traceback" not in said
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.jsonl", "curve.png", "episodes.jsonl"}
    assert len(metrics(tmp_path)) >= 3


def test_ctrl_c_before_the_first_update_leaves_nothing_that_blocks_the_next_run(tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(out, "--eval-episodes", "20000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    waited = time.monotonic() + 120
    while process.poll() is None and not out.exists() and time.monotonic() < waited:
        time.sleep(0.05)
    time.sleep(1.0)  # until the model generates
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted after 0 updates" in said
    assert "terminate called" not in said
    assert "Traceback" not in said
    (out / "metrics.jsonl").touch()  # as earlier versions left it
    again = run(out, *SMALL)
    assert again.returncode == 0, again.stderr


def test_the_score_before_training_is_told_at_once_and_is_not_on_the_clock(recipe, tmp_path, monkeypatch, capsys):
    now, scored = [0.0], recipe.success_rate

    def score_slowly(episodes):
        now[0] += 1000.0
        return scored(episodes)

    def interrupted(total):
        assert "before training: success" in capsys.readouterr().out

        def advance(text):
            raise KeyboardInterrupt

        return advance, lambda: None

    monkeypatch.setattr(recipe, "time", SimpleNamespace(time=lambda: now[0]))
    monkeypatch.setattr(recipe, "success_rate", score_slowly)
    monkeypatch.setattr(recipe, "progress", interrupted)
    assert not recipe.train(recipe.parse_args(["--out", str(tmp_path), *SMALL]))
    assert metrics(tmp_path)[0]["seconds"] == 1000  # its own success, and not that of the held-out seeds
    assert "before training: success" in capsys.readouterr().out


def test_help_shows_every_setting():
    done = subprocess.run([sys.executable, str(RECIPE), "--help"], capture_output=True, text=True, check=True)
    for setting in ("--model", "--env", "--wrappers", "--advantage", "--horizon", "--samples", "--overwrite"):
        assert setting in done.stdout
    assert "optimizer steps (default: 60)" in " ".join(done.stdout.split())
