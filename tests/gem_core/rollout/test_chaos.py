"""Chaos: 1,000 episodes with environments and policies that fail in every way."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chaos_program import EPISODES, KINDS, tasks
from project import SUPPORT

from gem_core import StopReason, TurnStatus, advantages, token_sequences
from gem_core.records.file import read_episodes

LUCK = re.compile(r"(Chaos\w+) luck (\d+);")
FATES = {0: "raise", 1: "hang", 2: "nonsense", 3: "nan", 4: "exit", 5: "segfault"}
DROPPED, HALVED, REFUSED = 10, 11, 12
STOPS = {
    "raise": StopReason.ENV_ERROR,
    "hang": StopReason.ENV_DEADLINE,
    "nonsense": StopReason.ENV_INVALID,
    "nan": StopReason.ENV_INVALID,
}


def fate_of(kind: str, luck: int) -> str:
    """The second turn's action. Only a process may exit; inline environments must not hang."""
    fate = FATES.get(luck, "go on")
    if fate in ("exit", "segfault") and kind != "ChaosProcess":
        fate = "raise"
    if fate == "hang" and kind == "ChaosInline":
        fate = "nan"
    return fate


class Handler(BaseHTTPRequestHandler):
    """Sends an action, half an answer or an error, or drops the connection, by the prompt."""

    def do_POST(self) -> None:
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        match = LUCK.search(prompt)
        assert match is not None
        luck, second = int(match[2]), "go on 1" in prompt
        if second and luck == DROPPED:
            self.connection.shutdown(socket.SHUT_RDWR)
        elif second and luck == HALVED:
            self.wfile.write(b'HTTP/1.1 200 OK\r\n\r\n{"acti')
        elif second and luck == REFUSED:
            self.send_error(500)
        else:
            action = fate_of(match[1], luck) if second else "go on"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"action": action}).encode())

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        pass  # dropped connections are part of the test


@pytest.fixture
def port() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.slow
def test_every_task_comes_back_once_with_its_stop_reason(port: int, tmp_path: Path) -> None:
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    command = [
        sys.executable,
        str(SUPPORT / "chaos_program.py"),
        str(port),
        str(tmp_path / "chaos.jsonl.gz"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as program:
        assert program.stdout is not None
        summary = json.loads(program.stdout.readline())
        code = program.wait(timeout=60)
        ended = time.time()
    assert code == 0
    exit_took = ended - summary["at"]
    assert exit_took < 30.0, f"the program took {exit_took:.1f} s to exit after its last episode"
    assert summary["episodes"] == EPISODES

    episodes = sorted(read_episodes(tmp_path / "chaos.jsonl.gz"), key=lambda e: e.index)
    assert [e.index for e in episodes] == list(range(EPISODES))
    assert [(e.env_id, e.seed) for e in episodes] == [(t.env_id, t.seed) for t in tasks()]
    seen: Counter[tuple[str, str]] = Counter()
    for episode in episodes:
        kind = episode.env_id.removeprefix("chaos:")
        match = LUCK.search(episode.turns[0].messages[-1].content) if episode.turns else None
        if match is None:  # the reset failed: a process may start too slowly on a busy machine
            assert kind == "ChaosProcess"
            assert episode.stop is StopReason.ENV_DEADLINE
            continue
        luck = int(match[2])
        fate = fate_of(kind, luck)
        if luck in (DROPPED, HALVED, REFUSED):
            expected, fate = StopReason.POLICY_ERROR, "policy"
        else:
            expected = STOPS.get(
                fate,
                StopReason.ENV_ERROR if fate in ("exit", "segfault") else StopReason.TERMINATED,
            )
        seen[kind, fate] += 1
        assert episode.stop is expected or (
            kind == "ChaosProcess" and episode.stop is StopReason.ENV_DEADLINE
        ), episode
        if expected is StopReason.TERMINATED and not episode.failed:
            assert episode.total_reward == 3.0
            # a process may start too slowly on a busy machine, and is retried
            assert episode.attempts == 1 or kind == "ChaosProcess"
            assert [t.status for t in episode.turns] == [TurnStatus.VALID] * 3
            assert episode.failure is None
        else:
            assert episode.total_reward is None  # unknown, not zero
            assert episode.failure is not None
            assert episode.attempts == 2
            assert token_sequences(episode) == []
    for kind in KINDS[:3]:
        for fate in ("raise", "nonsense", "nan", "policy", "go on"):
            assert seen[kind, fate], f"the seeds no longer give {kind} the fate {fate!r}"
    assert seen["ChaosThread", "hang"]
    assert seen["ChaosAsync", "hang"]
    assert summary["abandoned"] >= seen["ChaosThread", "hang"]
    per_turn = advantages(episodes, "rebn")
    failed = [a for e, a in zip(episodes, per_turn, strict=True) if e.failed]
    assert not any(any(a) for a in failed)
