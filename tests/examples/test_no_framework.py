"""The recipe without a framework: short runs in this process and on the command line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest
from project import ROOT
from recipes import METRICS, interrupt_recipe, run_recipe

from gem_core.errors import GemError
from gem_core.records.file import read_episodes
from gem_core.training.metrics_file import read_metrics

RECIPE = "no_framework_rebn.py"
SMALL = {"updates": 2, "episodes": 8, "eval_episodes": 8}


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    """Import the recipe: starting torch for each of many short runs would take minutes."""
    spec = importlib.util.spec_from_file_location("no_framework_rebn", ROOT / "examples" / RECIPE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_recipe_learns(tmp_path: Path) -> None:
    """Success on held-out seeds rises clearly, even with fewer updates than the default."""
    done = run_recipe(RECIPE, tmp_path, "--updates", "25", "--eval-episodes", "128")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("held-out success: ")
    assert "on 128 held-out seeds" in done.stdout.splitlines()[0]
    before, after = (float(part.split("%")[0].rpartition(" ")[2]) for part in last.split(",")[:2])
    assert after > before + 10
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(25))
    success = [line["success"] for line in lines]
    assert fmean(success[-5:]) > fmean(success[:5]) + 0.1


def test_recipe_writes_metrics_episodes_and_a_curve_and_appends_on_a_second_run(
    recipe: ModuleType, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "folder"
    recipe.main(recipe.Args(out=str(out), **SMALL))
    lines, episodes = read_metrics(out), list(read_episodes(out / "episodes.jsonl"))
    assert {path.name for path in out.iterdir()} == {"metrics.jsonl", "episodes.jsonl", "curve.png"}
    assert all(
        {name for name in line if "/" not in name} == METRICS
        and line["episodes"] == 8
        and line["tokens"] > 0
        for line in lines
    )
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(episodes) == 16
    assert {turn.versions for episode in episodes[8:] for turn in episode.turns} == {(1, 1)}
    recipe.main(recipe.Args(out=str(out), **SMALL))
    assert [line["step"] for line in read_metrics(out)] == [0, 1, 0, 1]
    assert len(list(read_episodes(out / "episodes.jsonl"))) == 32


@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "grpo", "samples": 4},
        {"advantage": "rloo", "samples": 2},
        {"advantage": "reinforce++"},
        {"env": "game:GuessTheNumber-v0-easy + 2*game:GuessTheNumber-v0-hard"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_recipe_supports_other_estimators_and_mixtures(
    recipe: ModuleType, tmp_path: Path, settings: dict[str, Any]
) -> None:
    recipe.main(recipe.Args(out=str(tmp_path), **SMALL, **settings))
    assert len(read_metrics(tmp_path)) == 2


def test_gradient_does_not_depend_on_the_micro_batch(recipe: ModuleType, tmp_path: Path) -> None:
    runs = []
    for size in (3, 64):
        recipe.main(recipe.Args(out=str(tmp_path / str(size)), micro_batch=size, **SMALL))
        runs.append(read_metrics(tmp_path / str(size)))
    for small, large in zip(*runs):
        assert small["tokens"] == large["tokens"]
        assert small["loss"] == pytest.approx(large["loss"], rel=1e-3, abs=1e-6)
        assert small["grad_norm"] == pytest.approx(large["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "game:GuesTheNumber-v0-easy"}, "did you mean"),
        ({"advantage": "ppo"}, "no advantage estimator"),
        ({"advantage": "gae"}, "needs a critic"),
        ({"advantage": "grpo"}, "--samples 2"),
        ({"gamma": 1.5}, "gamma"),
        ({"max_turn_tokens": 0}, "max_tokens must be 1 or more"),
        ({"updates": 0, "samples": 0}, "2 settings are rejected:\n- --updates must be"),
        ({"episodes": 2, "samples": 4}, "--episodes / --samples is 0, not 1 to --seeds"),
        ({"episodes": 256, "seeds": 128}, "--episodes / --samples is 256, not 1 to --seeds"),
    ],
)
def test_recipe_rejects_bad_settings_before_the_first_update(
    recipe: ModuleType, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(GemError, match=message):
        recipe.main(recipe.Args(**{"out": str(tmp_path / "out"), **SMALL, **settings}))
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_ctrl_c_leaves_metrics_and_episodes_readable(tmp_path: Path) -> None:
    done = interrupt_recipe(
        RECIPE, tmp_path, "--updates", "10000", "--episodes", "8", "--eval-episodes", "8"
    )
    assert done.returncode not in (0, None)
    assert "KeyboardInterrupt" in done.stderr or "Interrupted" in done.stderr
    assert "terminate called" not in done.stderr, "torch aborted at exit"
    lines = read_metrics(tmp_path)
    assert len(lines) >= 3
    assert len(list(read_episodes(tmp_path / "episodes.jsonl"))) >= 8 * len(lines)


def test_help_explains_every_setting(tmp_path: Path) -> None:
    done = run_recipe(RECIPE, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for setting in (
        "--model",
        "--env",
        "--advantage",
        "--samples",
        "--micro-batch",
        "the number of optimizer steps (default: 60)",
    ):
        assert setting in text
