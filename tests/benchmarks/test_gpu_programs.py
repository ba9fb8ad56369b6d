"""Tests of programs that docs/gpu.md names, with the tiny model on a CPU."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from reference_gradient import gradient_norms

from gem_core import (
    ConfigError,
    RecordWriter,
    Renderer,
    Rollout,
    Sampling,
    read_episodes,
    tasks_for,
)
from gem_core.adapter_kit.record_log import RecordLog
from gem_core.policies.models import load_model
from gem_core.policies.transformers_policy import TransformersPolicy

sys.path.insert(0, str(ROOT / "benchmarks"))

import bfloat16_steps
import engine_curve
import first_gradient
import gpu_curves
import gpu_report
import gpu_runs
import graph_gradients
import replay_run


def test_small_steps_from_rounded_weights_have_little_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bfloat16_steps.main(bfloat16_steps.Args("tiny", learning_rate=1e-5))
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[1:]]
    reached = [[int(cell.strip().rstrip("%")) for cell in row[1:]] for row in rows]
    assert [row[0] for row in reached] == sorted(row[0] for row in reached)
    assert reached[0][0] < 20 < 80 < reached[0][1]


def test_engine_curve_plays_the_same_tasks_twice(tmp_path: Path) -> None:
    engine_curve.main(engine_curve.Args("tiny", updates=1, out=tmp_path))
    (update,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert update["episodes"] == 256
    (replayed,) = gradient_norms(tmp_path, learning_rate=3e-5)
    assert update["grad_norm"] == pytest.approx(replayed, rel=1e-2)
    assert 0.2 < update["success"] < 0.9


def test_gpu_curves_keeps_the_metrics_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "RESULTS", tmp_path / "results")
    run = ["run", "tiny", "engine:3", "--updates", "1", "--out", str(tmp_path / "runs")]
    assert gpu_curves.main(run) == 0, (tmp_path / "runs" / "engine-3" / "log.txt").read_text()
    kept = gpu_runs.runs()["engine"][3]
    assert kept["alone"]
    assert len(kept["updates"]) == 1
    gpu_report.speed_table(gpu_runs.runs())  # one update gives no time
    with pytest.raises(ConfigError, match="engine-3 exists already"):
        gpu_curves.main(run)


def test_gpu_curves_reports_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "RESULTS", tmp_path / "results")
    false = str(shutil.which("false"))
    options = ["--python", f"trl={false}", "--together", "--out", str(tmp_path / "runs")]
    assert gpu_curves.main(["run", "tiny", "trl:0", "trl:1", *options]) == 1
    assert "trl:0 ended with status 1; see" in capsys.readouterr().out
    assert gpu_runs.runs() == {}


def test_gpu_curves_keeps_the_updates_of_a_run_that_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "RESULTS", tmp_path / "results")
    out, program, child = tmp_path / "runs", tmp_path / "sleeper", tmp_path / "child"
    update = json.dumps({"step": 0, "success": 0.5, "episodes": 4})
    program.write_text(
        f"#!/bin/sh\necho '{update}' > {out}/verl-0/metrics.jsonl\n"
        f"(trap '' INT; sleep 600) &\necho $! > {child}\nsleep 600\n"
    )
    program.chmod(0o755)
    wait = gpu_curves._wait

    def wait_once_written(*args: Any) -> None:
        limit = time.monotonic() + 60
        while not (child.exists() and child.read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        wait(*args)

    monkeypatch.setattr(gpu_curves, "_wait", wait_once_written)
    options = ["--python", f"verl={program}", "--together", "--seconds", "2", "--out", str(out)]
    assert gpu_curves.main(["run", "tiny", "verl:0", *options]) == 0
    assert len(gpu_runs.runs()["verl"][0]["updates"]) == 1
    state = Path("/proc", child.read_text().strip(), "stat")
    deadline = time.monotonic() + 60  # the kernel ends a killed process a little later
    with suppress(OSError):  # the process has ended
        while state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, "the process that the run started is still there"
            time.sleep(0.05)


@pytest.mark.parametrize("trainer", gpu_curves.RECIPES)
def test_gpu_curves_passes_options_that_the_recipe_has(trainer: str) -> None:
    recipe = ROOT / f"examples/{trainer}_guess_the_number.py"
    if trainer == "engine":
        recipe = ROOT / "benchmarks/engine_curve.py"
    fields = set(re.findall(r"^    (\w+): ", recipe.read_text(), re.MULTILINE))
    command = gpu_curves.Plan("folder", [], Path("out"), together=True).command(trainer, 0)
    options = [part.removeprefix("--").removeprefix("no-") for part in command if "--" in part]
    assert {name.replace("-", "_") for name in options} <= fields


@pytest.mark.parametrize(
    ("argument", "message"),
    [("trl", "expected TRAINER:SEED"), ("ppo:0", "one of engine, trl, verl")],
)
def test_gpu_curves_rejects_other_runs(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gpu_curves.main(["run", "tiny", argument])
    assert message in capsys.readouterr().err


def test_gpu_curves_writes_a_model_in_bfloat16(tmp_path: Path) -> None:
    assert gpu_curves.main(["model", str(tmp_path), "--name", "tiny", "--warm-up", "1"]) == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"  # transformers 4 has it
    load_model(str(tmp_path))


@pytest.mark.parametrize(
    "runs",
    [["trl:0", "trl:0"], ["trl:0", "--updates", "0"], ["skyrl:0", "skyrl:1", "--together"]],
)
def test_gpu_curves_rejects_bad_input(runs: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"given twice|at least 1|same port"):
        gpu_curves.main(["run", "tiny", *runs, "--out", str(tmp_path)])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The record of two updates, without training between them, and metrics with norms of 1."""
    model, tokenizer = load_model("tiny")
    policy = TransformersPolicy(model, tokenizer, max_batch=None, seed=0)
    rollout = Rollout(policy, Renderer(tokenizer), sampling=Sampling(max_tokens=24))
    records = RecordLog(str(tmp_path / "run" / "episodes.jsonl"))
    for update in range(2):
        tasks = tasks_for("game:GuessTheNumber-v0-easy", range(4 * update, 4 * update + 4))
        episodes = rollout.run_batch(tasks)
        # fixed: ReBN of four episodes with equal returns is zero, and there is no gradient
        per_turn = [[0.5 - number] * len(e.turns) for number, e in enumerate(episodes)]
        records.trained(episodes, per_turn, update)
    records.close()
    lines = [json.dumps({"step": step, "grad_norm": 1.0}) + "\n" for step in range(2)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines))
    return tmp_path / "run"


def expected_norms(folder: Path) -> list[float]:
    """Return the gradient norms of both updates, one turn and one token at a time."""
    model, _ = load_model("tiny")
    adam = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0)
    norms = []
    for update in range(2):
        found = list(read_episodes(folder / "episodes.jsonl"))
        trained = [e for e in found if e.final_info["update"] == update]
        tokens = sum(len(turn.action_ids) for e in trained for turn in e.turns)
        model.zero_grad()
        for e in trained:
            for number, turn in enumerate(e.turns):
                ids = [*e.prompt_ids(number), *turn.action_ids]
                logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
                first = len(ids) - len(turn.action_ids)
                own = sum(logprobs[i - 1, ids[i]] for i in range(first, len(ids)))
                (-e.final_info["advantages"][number] / tokens * own).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        adam.step()
    return norms


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # some CPUs have no bfloat16
def test_first_gradient_and_replay_are_those_of_single_tokens(
    recorded: Path, tmp_path: Path
) -> None:
    model, expected = "tiny", expected_norms(recorded)
    for dtype, tolerance in (("float32", 1e-3), ("bfloat16", 5e-2)):
        lines = list(
            replay_run.replay(
                replay_run.Args(model, recorded, 2e-3, dtype=dtype, batch=3, device="cpu")
            )
        )
        assert [line["replayed"] for line in lines] == pytest.approx(expected, rel=tolerance)
        assert [line["reported"] for line in lines] == [1.0, 1.0]
    out = tmp_path / "first.jsonl"
    first_gradient.main(first_gradient.Args(model, (recorded,), batch=3, device="cpu", out=out))
    row = json.loads(out.read_text())
    assert row["float32"]["norm"] == pytest.approx(expected[0], rel=1e-3)
    assert 0.99 < row["bfloat16 weights"]["cosine"] < 1.00001


def test_gradients_with_graphs_are_those_in_float32(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "graphs.json"
    graph_gradients.main(graph_gradients.Args("tiny", recorded, room=512, out=out))
    result = json.loads(out.read_text())
    for name in ("without graphs", "with graphs"):
        assert result[name]["norm"] == pytest.approx(result["float32"]["norm"], rel=1e-3)
        assert result[name]["cosine"] > 0.9999
    with pytest.raises(ConfigError, match="has no trained update 9"):
        graph_gradients.main(graph_gradients.Args("tiny", recorded, update=9, out=out))


def test_replay_names_what_is_wrong_with_its_input(recorded: Path) -> None:
    def replay(batch: int = 1) -> None:
        args = replay_run.Args("tiny", recorded, 1e-3, batch=batch, device="cpu")
        list(replay_run.replay(args))

    with pytest.raises(ConfigError, match="--batch must be at least 1, got 0"):
        replay(batch=0)
    metrics = recorded / "metrics.jsonl"
    metrics.write_text(metrics.read_text() * 2)
    with pytest.raises(ConfigError, match="has several runs"):
        replay()
    metrics.write_text("")
    with pytest.raises(ConfigError, match="has no update 0"):
        first_gradient.main(first_gradient.Args("tiny", (recorded,)))
    with pytest.raises(ConfigError, match="at least one run"):
        first_gradient.main(first_gradient.Args("tiny", ()))


def test_first_gradient_rejects_a_run_without_one(recorded: Path, tmp_path: Path) -> None:
    episodes = list(read_episodes(recorded / "episodes.jsonl"))
    with RecordWriter(recorded / "episodes.jsonl", overwrite=True) as record:
        for e in episodes:
            zeros = [0.0] * len(e.turns)
            record.write(replace(e, final_info={**e.final_info, "advantages": zeros}))
    out = tmp_path / "first.jsonl"
    with pytest.raises(ConfigError, match="run has no gradient in update 0"):
        first_gradient.main(first_gradient.Args("tiny", (recorded,), device="cpu", out=out))
    assert not out.exists()
