"""The tiny model on the command line: Ctrl-C during a generation, and clean output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging

from gem_core import Sampling
from gem_core.__main__ import main
from gem_core.errors import PolicyError
from gem_core.policies import TransformersPolicy, load_tiny
from gem_core.records.file import read_episodes, read_header

EASY = "game:GuessTheNumber-v0-easy"
EASY_OF_SUITE = "game:Mastermind-v0-easy"


def evaluation(out: Path) -> list[str]:
    args = ["--model", "tiny", "--seeds", "15", "--samples", "4", "--no-bounds", "--out", str(out)]
    return [sys.executable, "-m", "gem_core", "eval", EASY, *args]


def test_ctrl_c_during_a_generation_exits_with_130_and_the_run_resumes(tmp_path: Path) -> None:
    process = subprocess.Popen(evaluation(tmp_path), stderr=subprocess.PIPE, text=True)
    record = tmp_path / "episodes.jsonl"
    deadline = time.monotonic() + 120
    while (
        process.poll() is None
        and not (record.exists() and record.stat().st_size > 3000)
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "Run the same command to resume" in error
    assert "terminate called" not in error
    assert "Loading weights" not in error
    assert 0 < len(list(read_episodes(record))) < 60, "it ended before it could be interrupted"
    assert subprocess.run(evaluation(tmp_path), capture_output=True).returncode == 0
    assert sorted(e.index for e in read_episodes(record)) == list(range(60))


def test_run_does_not_resume_with_other_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = load_tiny()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    command = ["eval", EASY, "--model", str(tmp_path / "model"), "--seeds", "2", "--no-bounds"]
    command += ["--quiet", "--out", str(tmp_path / "out")]
    assert main(command) == 0 and main(command) == 0
    next(model.parameters()).data.mul_(0.5)
    model.save_pretrained(tmp_path / "model")
    assert main(command) == 2
    assert "holds another evaluation: kind was 'local" in capsys.readouterr().err


def test_template_settings_reach_the_model_and_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", EASY, "--model", "tiny", "--seeds", "1", "--quiet", "--out", str(tmp_path)]
    settings = ["--history", "template", "--template-kwargs", '{"enable_thinking": false}']
    assert main([*command, *settings]) == 0
    (plan,) = json.loads((tmp_path / "summary.json").read_text())["plans"]
    expected = {"history": "template", "template_kwargs": {"enable_thinking": False}}
    assert {name: plan[name] for name in expected} == expected
    recorded = read_header(tmp_path / "episodes.jsonl")["meta"]["plan"]
    assert {name: recorded[name] for name in expected} == expected
    assert main(command) == 2
    assert "history was 'template' and is now 'append'" in capsys.readouterr().err


def test_suite_passes_the_template_settings_to_the_model_only(tmp_path: Path) -> None:
    command = ["suite", "gem-eval-v1", "--families", EASY_OF_SUITE, "--seeds", "1", "--quiet"]
    command += ["--model", "random,tiny", "--max-tokens", "8", "--out", str(tmp_path)]
    assert main([*command, "--history", "template"]) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["history"] == "template"
    for player, history in (("random", "append"), ("tiny", "template")):
        plan = read_header(tmp_path / f"{player}.jsonl")["meta"]["plan"]
        assert plan["history"] == history


def test_closed_policy_stops_its_generation_and_rejects_new_ones() -> None:
    policy = TransformersPolicy(*load_tiny(), stop_ids=[])
    errors: list[Exception] = []

    def generate() -> None:
        try:
            policy.generate_batch([[5]], Sampling(max_tokens=100_000))
        except PolicyError as error:
            errors.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    while thread not in policy._generating._threads:
        time.sleep(0.01)
    policy.close()
    assert not thread.is_alive()
    assert "closed" in str(errors[0])
    with pytest.raises(PolicyError, match="is closed"):
        policy.generate_batch([[5]], Sampling(max_tokens=1))


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_hides_the_progress_bar_and_restores_the_setting(
    enabled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    monkeypatch.setattr(logging, "_tqdm_active", enabled)
    load_tiny()
    assert logging.is_progress_bar_enabled() is enabled
    assert capsys.readouterr().err == ""


def test_max_turns_list_draws_a_scaling_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", EASY, "--model", "tiny", "--seeds", "6", "--samples", "4", "--quiet"]
    args += ["--max-turns", "1,2,4", "--max-tokens", "24", "--out", str(tmp_path)]
    assert main(args) == 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "4 turns at most" in (tmp_path / "scaling.svg").read_text()
    assert "TOKENS" in capsys.readouterr().out
