"""Evaluation of SmolLM2 on `transformers serve`, with a run that is killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import clean_env

from gem_core.adapter_kit.ports import free_port
from gem_core.policies.smollm2 import smollm2_path
from gem_core.records.file import read_episodes

ENVS = ["game:GuessTheNumber-v0-easy", "qa:Sample-v0"]
SEEDS = 3
GEM = [sys.executable, "-m", "gem_core"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    program = Path(sys.executable).with_name("transformers")
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    env = clean_env(HF_HUB_OFFLINE="1", OMP_NUM_THREADS=str(os.cpu_count()))
    model = smollm2_path()
    with log.open("wb") as stream:
        # start it in the model's folder: the served name is the path on the command line
        process = subprocess.Popen(
            [program, "serve", *options, model.name],
            cwd=model.parent,
            stdout=stream,
            stderr=stream,
            env=env,
        )
    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


def command(server: str, out: Path) -> list[str]:
    """Sample greedily: the answer depends on the request only."""
    model = ["--model", "SmolLM2-135M-Instruct", "--server", server, "--temperature", "0"]
    size = ["--max-tokens", "8", "--concurrency", "2", "--seeds", str(SEEDS)]
    return [*GEM, "eval", *ENVS, *model, *size, "--out", str(out)]


def run(server: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Run outside the checkout, whose packages would shadow the installed ones."""
    return subprocess.run(
        command(server, out), cwd=out, env=clean_env(), capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def evaluated(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an uninterrupted run."""
    out = tmp_path_factory.mktemp("uninterrupted")
    done = run(server, out)
    assert done.returncode == 0, done.stderr
    return out


def test_evaluation_completes(evaluated: Path) -> None:
    scores = json.loads((evaluated / "summary.json").read_text())["scores"]
    assert [(s["env_id"], s["player"]) for s in scores] == [
        (env, player) for env in ENVS for player in ("random", "SmolLM2-135M-Instruct", "expert")
    ]
    for s in scores:
        assert (s["episodes"], s["failed"]) == (SEEDS, 0)
        if s["player"] == "SmolLM2-135M-Instruct":
            assert 1 <= s["tokens"] <= 8 * 4, "expected the server's token count"
        if s["player"] == "expert":
            assert s["success"]["value"] == 1.0
    actions = {t.action for e in read_episodes(evaluated / "episodes.jsonl") for t in e.turns}
    assert len(actions) > 1, "the model gave the same answer to every prompt"


def test_killed_evaluation_resumes_and_writes_the_same_table(
    server: str, evaluated: Path, tmp_path: Path
) -> None:
    record = tmp_path / "episodes.jsonl"
    process = subprocess.Popen(
        command(server, tmp_path),
        cwd=tmp_path,
        env=clean_env(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not (
        record.exists() and len(list(read_episodes(record))) >= SEEDS
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [e.index for e in read_episodes(record)]
    assert SEEDS <= len(before) < 2 * SEEDS, "the run ended before it was killed"
    done = run(server, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"resuming, {len(before)} of {2 * SEEDS} episodes are recorded" in done.stderr
    after = [e.index for e in read_episodes(record)]
    assert after[: len(before)] == before
    assert sorted(after) == list(range(2 * SEEDS))
    for name in ("table.txt", "summary.json"):
        assert (tmp_path / name).read_bytes() == (evaluated / name).read_bytes()
