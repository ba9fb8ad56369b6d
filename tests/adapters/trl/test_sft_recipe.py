"""The SFT recipe trains TRL's SFTTrainer on exported episodes."""

from __future__ import annotations

from pathlib import Path

from recipes import run_recipe

from gem_core.__main__ import main


def test_recipe_trains_on_exported_episodes(tmp_path: Path) -> None:
    data = tmp_path / "sft.jsonl"
    command = ["export", "sft", "game:GuessTheNumber-v0-easy", "--episodes", "4"]
    assert main([*command, "--out", str(data)]) == 0
    settings = ["--data", str(data), "--epochs", "1", "--batch-size", "8"]
    done = run_recipe("trl_sft.py", tmp_path / "run", *settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loss" in done.stdout and (tmp_path / "run" / "model" / "config.json").exists()
