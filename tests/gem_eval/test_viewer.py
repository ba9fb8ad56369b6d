"""Viewer without a browser: pages contain no raw model output, the server follows a record."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from hostile_episodes import HOSTILE, hostile_episodes

from gem_core import Episode, RandomPlayer, StopReason, Turn, advantages, run_batch, tasks_for
from gem_core.__main__ import main
from gem_core.errors import ConfigError
from gem_core.records.file import RecordWriter
from gem_eval.viewer import Credit, ViewerServer, page_of, title_of

EASY = "game:GuessTheNumber-v0-easy"


def lines_of(page: str) -> list[list[Any]]:
    (data,) = re.findall(r'id="data">([^<]*)</script>', page)
    return [
        json.loads(line) for line in gzip.decompress(base64.b64decode(data)).decode().splitlines()
    ]


def test_page_does_not_contain_hostile_text() -> None:
    page = page_of(hostile_episodes(), HOSTILE[0])
    clean = page_of([], "clean")
    for text in HOSTILE[1:]:
        assert text not in page
    assert page.count("<script") == clean.count("<script")
    assert "&lt;/script&gt;" in page  # the title
    assert "<title>" + HOSTILE[0] not in page


def test_page_contains_every_action_return_and_advantage() -> None:
    episodes = run_batch(tasks_for(EASY, range(8)), RandomPlayer())
    lines = lines_of(page_of(episodes, "t", Credit("rebn", 0.9)))
    assert [kind for kind, _ in lines] == ["e", "d"] * 8 + ["a"]
    assert [[t["a"] for t in content["t"]] for kind, content in lines if kind == "d"] == [
        [t.action for t in e.turns] for e in episodes
    ]
    assert [s["r"] for kind, s in lines if kind == "e"] == [e.total_reward for e in episodes]
    for shown, expected in zip(lines[-1][1], advantages(episodes, "rebn", gamma=0.9), strict=True):
        assert shown == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ([0.5, None, -1], [0.5, None, -1]),
        ([0.5, float("nan"), "x"], [0.5, None, None]),
        ([0.5], None),  # not one per turn
        ("abc", None),
    ],
)
def test_recorded_advantages_are_shown_as_they_are(recorded: Any, shown: Any) -> None:
    turns = tuple(Turn((), "a", 1.0) for _ in range(3))
    info = {"advantages": recorded, "update": 4, "evaluation": True}
    episode = Episode("x:Y", 1, turns, StopReason.TERMINATED, final_info=info)
    (_, summary), (_, detail), _ = lines_of(page_of([episode], "t"))
    assert detail["c"] == shown
    assert (summary["d"], summary["y"]) == (4, True)


def test_advantages_are_recomputed_over_the_episodes_of_one_update() -> None:
    def episode(update: int | None, reward: float) -> Episode:
        info = {} if update is None else {"update": update}
        turns = (Turn((), "a", reward),)
        return Episode("x:Y", 1, turns, StopReason.TERMINATED, final_info=info)

    rewards = [(0, 0.0), (0, 1.0), (1, 10.0), (1, 30.0), (None, 5.0)]
    *lines, (_, shown) = lines_of(page_of([episode(*r) for r in rewards], "t"))
    assert [a for (a,) in shown] == pytest.approx([-1.0, 1.0, -1.0, 1.0, 0.0])
    groups = [content["g"] for kind, content in lines if kind == "e"]
    assert groups == [0, 0, 1, 1, 2], "the same seed in another update is another group"


def test_title_names_the_model_and_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "wordle"
    assert title_of(folder / "episodes.jsonl") == "wordle"  # the record does not exist yet
    for name, player in (("episodes", "gpt"), ("random", "random"), ("mine", "gpt")):
        with RecordWriter(folder / f"{name}.jsonl.gz", meta={"plan": {"player": player}}):
            pass
    names = ("episodes", "random", "mine")
    titles = [title_of(folder / f"{name}.jsonl.gz") for name in names]
    assert titles == ["gpt · wordle", "random · wordle", "gpt · mine"]


@pytest.mark.parametrize(
    ("stack", "shown"),
    [
        ('[["boxed", {}]]', "boxed"),
        (
            '[["boxed", {}], ["turn_limit", {"max_turns": 3}], "mine.Wrapper"]',
            "boxed, turn_limit(max_turns=3), mine.Wrapper",
        ),
        ("[]", ""),
        ("", ""),
        ("{", "{"),
        ("5", "5"),
        ("[[1], 2]", "[1], 2"),
    ],
)
def test_page_shows_wrappers_in_command_line_syntax(stack: str, shown: str) -> None:
    (episode,) = run_batch(tasks_for(EASY, [0]), RandomPlayer())
    lines = lines_of(page_of([replace(episode, wrappers=stack)], "t"))
    assert [content["w"] for kind, content in lines if kind == "d"] == [shown]


def test_page_policy_allows_only_its_own_script() -> None:
    page = page_of([], "t")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy
    assert "connect-src &#x27;none&#x27;" in policy
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:|//)""", page)


def test_view_writes_the_page_next_to_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["eval", EASY, "--model", "random", "--seeds", "3", "--no-bounds", "--quiet"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    assert main(["view", str(tmp_path)]) == 0
    assert "episodes.html" in capsys.readouterr().out
    kinds = [kind for kind, _ in lines_of((tmp_path / "episodes.html").read_text())]
    assert kinds.count("e") == 3
    assert main(["view", str(tmp_path / "none.jsonl")]) == 2
    assert main(["view", str(tmp_path), "--advantage", "rebm"]) == 2
    assert main(["view", str(tmp_path), "--follow", "--out", "x.html"]) == 2
    assert main(["view", str(tmp_path), "--follow", "--port", "99999"]) == 2
    capsys.readouterr()
    assert main(["view", str(tmp_path), "--port", "5"]) == 2
    assert "--port is the port of --follow" in capsys.readouterr().err


def test_view_does_not_replace_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, other = tmp_path / "episodes.jsonl", tmp_path / "other.jsonl"
    for path in (source, other):
        with RecordWriter(path) as record:
            record.write(run_batch(tasks_for(EASY, [0]), RandomPlayer())[0])
    before = source.read_bytes(), other.read_bytes()
    assert main(["view", str(tmp_path), "--out", str(source)]) == 2
    assert "is the input of the command" in capsys.readouterr().err
    assert main(["view", str(source), "--out", str(other)]) == 2
    assert "is an episode record" in capsys.readouterr().err
    assert (source.read_bytes(), other.read_bytes()) == before


@pytest.mark.parametrize(("count", "shown"), [(None, "0 episodes"), (0, "0 "), (1, "1 episode,")])
def test_view_prints_the_number_of_episodes(
    count: int | None, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    if count is None:
        path.touch()
    else:
        with RecordWriter(path) as record:
            for episode in run_batch(tasks_for(EASY, range(count)), RandomPlayer()):
                record.write(episode)
    assert main(["view", str(path)]) == 0
    assert f"r.html: {shown}" in capsys.readouterr().out


def test_credit_rejects_an_estimator_that_needs_a_critic() -> None:
    with pytest.raises(ConfigError, match="values"):
        Credit("gae")


# The server.


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[tuple[ViewerServer, Path]]:
    server = ViewerServer(tmp_path / "r.jsonl")
    thread = threading.Thread(target=server.serve)
    thread.start()
    while not server._serving:
        time.sleep(0.001)
    yield server, tmp_path / "r.jsonl"
    server.close()
    thread.join()


@dataclass
class Answer:
    status: int
    headers: Message
    body: bytes


def get(server: ViewerServer, path: str, host: str | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{server.port}"})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def ask(server: ViewerServer, path: str) -> Any:
    return json.loads(get(server, path).body)


def test_server_follows_a_record_that_does_not_exist_yet(
    followed: tuple[ViewerServer, Path],
) -> None:
    server, path = followed
    assert ask(server, "/lines?from=0")["lines"] == []
    episodes = run_batch(tasks_for(EASY, range(4)), RandomPlayer())
    with RecordWriter(path) as record:
        record.write(episodes[0])
        first = ask(server, "/lines?from=0")
        assert len(first["lines"]) == 2
        assert ask(server, f"/lines?from={first['next']}")["lines"] == []
        for episode in episodes[1:]:
            record.write(episode)
        assert len(ask(server, f"/lines?from={first['next']}")["lines"]) == 6
    assert ask(server, "/advantages?episode=2") == pytest.approx(
        advantages(episodes, "rebn", gamma=1.0)[2]
    )
    assert ask(server, "/advantages?episode=99") is None
    with RecordWriter(path, overwrite=True) as record:
        record.write(episodes[1])
    replaced = ask(server, f"/lines?generation={first['generation']}&from=8")
    assert replaced["generation"] != first["generation"]
    assert len(replaced["lines"]) == 2


def test_server_follows_a_record_that_was_overwritten_and_has_grown(
    followed: tuple[ViewerServer, Path],
) -> None:
    server, path = followed
    episodes = run_batch(tasks_for(EASY, range(4)), RandomPlayer())
    with RecordWriter(path) as record:
        record.write(episodes[0])
    first = ask(server, "/lines?from=0")
    with RecordWriter(path, overwrite=True, meta={"another": "header"}) as record:
        for episode in episodes:
            record.write(episode)
    replaced = ask(server, f"/lines?generation={first['generation']}&from=2")
    assert replaced["generation"] != first["generation"]
    assert len(replaced["lines"]) == 8


def test_server_names_the_line_of_a_damaged_record(followed: tuple[ViewerServer, Path]) -> None:
    server, path = followed
    with RecordWriter(path) as record:
        record.write(run_batch(tasks_for(EASY, [0]), RandomPlayer())[0])
    ask(server, "/lines?from=0")
    with path.open("a") as stream:
        stream.write("{}\n")
    for _ in range(2):
        answer = get(server, "/lines?from=2")
        assert answer.status == 500 and b"line 3" in answer.body, answer.body


def test_server_rejects_other_hosts_and_sends_its_policy(
    followed: tuple[ViewerServer, Path],
) -> None:
    server, _ = followed
    assert server.url.startswith("http://127.0.0.1:")
    page = get(server, "/")
    assert page.status == 200
    assert "frame-ancestors 'none'" in (page.headers["Content-Security-Policy"] or "")
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert get(server, "/", host="evil.example:80").status == 403
    assert get(server, "/etc/passwd").status == 404
    assert get(server, "/lines?from=x").status == 400


def test_server_closes_without_having_served(tmp_path: Path) -> None:
    closing = threading.Thread(target=ViewerServer(tmp_path / "run.jsonl").close, daemon=True)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()


def test_server_limits_connections_and_the_time_of_a_request(
    followed: tuple[ViewerServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = followed[0]
    monkeypatch.setattr("gem_http.listener.Handler.header_seconds", 1.0)
    address = ("127.0.0.1", server.port)
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(address, timeout=15)) for _ in range(65)
        ]
        assert connections[64].recv(100).startswith(b"HTTP/1.1 503 ")
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 10:
                connections[0].sendall(b"G")
                time.sleep(0.2)
        assert time.monotonic() - started < 8  # the slow request was cut off


def test_server_rejects_a_port_in_use(followed: tuple[ViewerServer, Path]) -> None:
    with pytest.raises(ConfigError, match="choose another --port"):
        ViewerServer("x.jsonl", port=followed[0].port)
