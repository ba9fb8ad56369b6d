"""Tests of records: episodes round-trip, survive kill -9, and never contain a secret."""

from __future__ import annotations

import errno
import gc
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import SUPPORT

from gem_core import (
    Episode,
    Failure,
    FinishReason,
    Message,
    Sampling,
    StopReason,
    Task,
    Turn,
    TurnStatus,
    advantages,
    token_sequences,
)
from gem_core.env.registry import wrappers_of
from gem_core.errors import RecordError
from gem_core.records.file import RecordWriter, WorkerRecords, read_episodes, read_header
from gem_core.records.redact import REDACTED, Redactor
from gem_core.records.serialize import (
    OpaqueValue,
    episode_from_json,
    episode_to_json,
    from_plain,
    to_plain,
    without_secrets,
)

SUFFIXES = ["record.jsonl", "record.jsonl.gz"]


def full_episode(seed: int = 3, **changes: object) -> Episode:
    turns = (
        Turn(
            messages=(
                Message("system", "rules"),
                Message("user", "first\n\u2028 line é \ud83d 🙂"),
            ),
            action="a1",
            reward=0.1 + 0.2,
            added_ids=(1, 2, 3),
            restarted=True,
            action_ids=(4, 5),
            logprobs=(-0.1, -1e-12),
            sampling=Sampling(temperature=0.7, max_tokens=9, stop=("\n", "x")),
            versions=(3, 4),
            info={"parsed_action": "a1", "nested": {"list": [1, 2.5, None, True, "x"]}},
        ),
        Turn(
            messages=(Message("user", "second"),),
            action="",
            reward=-1.0,
            added_ids=(6,),
            status=TurnStatus.MASKED,
            finish=FinishReason.EMPTY,
        ),
        Turn(
            messages=(Message("tool", "third"),),
            action="cut",
            reward=0.5,
            added_ids=(7,),
            action_ids=(8,),
            finish=FinishReason.LENGTH,
        ),
    )
    fields: dict[str, object] = {
        "options": {"level": 2},
        "wrappers": "[]",
        "component": "game:B-v0",
        "final_observation": "the end",
        "final_info": {"success": True},
        "index": 7,
        "attempts": 2,
        "seconds": 1.25,
        **changes,
    }
    return Episode("game:A-v0", seed, turns, StopReason.TRUNCATED, **fields)  # type: ignore[arg-type]


def failed_episode() -> Episode:
    turn = Turn(
        messages=(Message("user", "x"),),
        action="a",
        reward=None,
        added_ids=(1,),
        action_ids=(2,),
        status=TurnStatus.FAILED,
    )
    return Episode(
        "game:A-v0",
        3,
        (turn,),
        StopReason.ENV_ERROR,
        wrappers="[]",
        failure=Failure("ValueError", "broken", "step", "Traceback"),
    )


@pytest.mark.parametrize(
    "episode",
    [full_episode(), failed_episode(), Episode("x:Y", 0, (), StopReason.CONTEXT_FULL)],
    ids=["full", "failed", "empty"],
)
def test_episode_round_trips_through_json(episode: Episode) -> None:
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode


def test_env_kwargs_round_trip_through_json() -> None:
    episode = full_episode(env_kwargs={"dim_room": (6, 6), "odds": {1: float("inf")}})
    restored = episode_from_json(json.loads(json.dumps(episode_to_json(episode))))
    assert restored == episode
    assert restored.env_kwargs["dim_room"] == (6, 6)
    assert restored.group == episode.group


def test_record_stores_only_the_added_ids() -> None:
    turns = episode_to_json(full_episode())["turns"]
    assert [t.get("added_ids") for t in turns] == [[1, 2, 3], [6], [7]]
    assert [t.get("action_ids") for t in turns] == [[4, 5], None, [8]]


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, "x")),
        {1: "a", (2, 3): [()]},
        {"$tuple": [1]},
        float("inf"),
        {"": {"a": -0.0}},
        10**30,
        OpaqueValue("t", "x"),
    ],
)
def test_info_beyond_json_round_trips(value: object) -> None:
    episode = full_episode(final_info={"it": value})
    restored = episode_from_json(json.loads(json.dumps(episode_to_json(episode))))
    assert restored.final_info["it"] == value
    assert type(restored.final_info["it"]) is type(value)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def recursive_list() -> list[object]:
    items: list[object] = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        object(),
        Unprintable(),
        recursive_list(),
        ValueError("x"),
        lambda: 0,
        1 + 2j,
        pytest.param(10**5000, id="more digits than Python writes as text"),
    ],
)
def test_info_that_json_cannot_represent_becomes_an_opaque_value(value: object) -> None:
    once = episode_from_json(
        json.loads(json.dumps(episode_to_json(full_episode(final_info={"it": value}))))
    )
    assert "OpaqueValue(" in repr(once.final_info)
    assert episode_from_json(json.loads(json.dumps(episode_to_json(once)))) == once


@pytest.mark.parametrize("name", SUFFIXES)
def test_record_grows_across_writers(tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / name
    for seed in range(3):
        with RecordWriter(path, meta={"run": 1}) as record:
            record.write(full_episode(seed))
    assert list(read_episodes(path)) == [full_episode(seed) for seed in range(3)]
    assert read_header(path)["meta"] == {"run": 1}
    data = path.read_bytes()
    lines = (gzip.decompress(data) if name.endswith(".gz") else data).decode().split("\n")
    assert len(lines) == 5
    assert lines[-1] == ""


def test_record_compressed_by_another_program_is_read_and_grows(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "plain.jsonl", meta={"run": 1}) as record:
        record.write(full_episode(0))
        record.write(full_episode(1))
    path, plain = tmp_path / "episodes.jsonl.gz", (tmp_path / "plain.jsonl").read_bytes()
    path.write_bytes(gzip.compress(plain))
    assert list(read_episodes(path)) == [full_episode(0), full_episode(1)]
    with RecordWriter(path, meta={"run": 1}) as record:
        record.write(full_episode(2))
    assert list(read_episodes(path)) == [full_episode(seed) for seed in range(3)]


def test_compressed_file_that_cannot_be_resumed_is_kept(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "plain.jsonl") as record:
        record.write(full_episode(0))
    path, plain = tmp_path / "episodes.jsonl.gz", (tmp_path / "plain.jsonl").read_bytes()
    for content, problem in (
        (plain[:-20], "compressed with an incomplete last line; decompress it"),
        (b'{"important": "data"}', "is not a gem record"),
        (b'{"important": "data"}\n', "is not a gem record"),
    ):
        path.write_bytes(before := gzip.compress(content))
        for use in (RecordWriter, read_header, lambda path: list(read_episodes(path))):
            with pytest.raises(RecordError, match=problem):
                use(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize("name", SUFFIXES)
def test_truncated_file_loses_only_the_truncated_episodes(tmp_path: Path, name: str) -> None:
    path, ends = tmp_path / name, []
    with RecordWriter(path) as record:
        ends.append(path.stat().st_size)
        for seed in range(3):
            record.write(full_episode(seed))
            ends.append(path.stat().st_size)
    data = path.read_bytes()
    truncated = tmp_path / f"truncated-{name}"
    for length in range(0, len(data), 7):
        complete = sum(1 for end in ends[1:] if end <= length)
        truncated.write_bytes(data[:length])
        assert [e.seed for e in read_episodes(truncated)] == list(range(complete))
        with RecordWriter(truncated) as record:
            record.write(full_episode(9))
        assert [e.seed for e in read_episodes(truncated)] == [*range(complete), 9]


def test_trailing_zeros_are_ignored(tmp_path: Path) -> None:
    for name in SUFFIXES:
        path = tmp_path / name
        with RecordWriter(path) as record:
            record.write(full_episode())
        path.write_bytes(path.read_bytes() + b"\0" * 4096)
        assert len(list(read_episodes(path))) == 1


WRITE_FOREVER = """
import sys
sys.path[:0] = sys.argv[2:]
from test_records import full_episode
from gem_core.records.file import RecordWriter
with RecordWriter(sys.argv[1]) as record:
    seed = 0
    while True:
        record.write(full_episode(seed))
        print(seed, flush=True)
        seed += 1
"""


@pytest.mark.parametrize("name", SUFFIXES)
def test_kill_9_loses_no_written_episode(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    command = [
        sys.executable,
        "-c",
        WRITE_FOREVER,
        str(path),
        str(Path(__file__).parent),
        str(SUPPORT),
        *sys.path,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = -1
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged >= 50:
                os.kill(process.pid, signal.SIGKILL)
                break
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout)])
    seeds = [e.seed for e in read_episodes(path)]
    assert seeds == list(range(len(seeds)))
    assert len(seeds) > acknowledged
    with RecordWriter(path) as record:
        record.write(full_episode(10**6))
    assert [e.seed for e in read_episodes(path)] == [*seeds, 10**6]


@pytest.mark.parametrize("name", SUFFIXES)
def test_damage_in_the_middle_raises_with_the_line_number(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with RecordWriter(path) as record:
        header_end = path.stat().st_size
        for seed in range(3):
            record.write(full_episode(seed))
    data = bytearray(path.read_bytes())
    data[header_end + 2 : header_end + 30] = b"#" * 28
    path.write_bytes(data)
    with pytest.raises(RecordError, match="line 2"):
        list(read_episodes(path))


UNKNOWN_FIELD = '{"env_id": "x", "seed": 1, "turns": [], "stop": "terminated", "new": 1}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n', "not a gem record"),
        ("hello\n", "not a gem record"),
        ('{"gem_record": 99}\n', "version 99"),
        ('{"gem_record": 1}\n{"env_id": "x"}\n', "line 2"),
        (f'{{"gem_record": 1}}\n{UNKNOWN_FIELD}\n', "'new'"),
    ],
)
def test_non_record_file_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(content)
    with pytest.raises(RecordError, match=message):
        list(read_episodes(path))
    if "line 2" not in message and "new" not in message:
        with pytest.raises(RecordError, match=message):
            RecordWriter(path)
        assert path.read_text() == content


@pytest.mark.parametrize("content", ['{"results": [1, 2]}', "text", "{"])
def test_file_without_a_line_break_is_rejected_unless_it_is_an_incomplete_header(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(content)
    if content == "{":
        RecordWriter(path).close()
        assert read_header(path)
        return
    with pytest.raises(RecordError, match="not a gem record"):
        RecordWriter(path)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", '"x"'),
        ("seed", "1.5"),
        ("env_id", "3"),
        ("trainable", '"no"'),
        ("final_observation", "{}"),
        ("turns", "3"),
        ("reward", '"1"'),
        ("reward", "NaN"),
        ("reward", "true"),
        ("action", "5"),
        ("action_ids", '["a"]'),
        ("action_ids", "[1.5]"),
        ("added_ids", '"12"'),
        ("logprobs", "[NaN]"),
        ("messages", '[["user", 3]]'),
        ("info", "[" * 3000 + "]" * 3000),
        ("info", "[" * 100_000 + "]" * 100_000),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected(tmp_path: Path, field: str, value: str) -> None:
    turn = {"messages": "[]", "action": '"a"', "reward": "1.0"}
    episode = {"env_id": '"x"', "seed": "1", "stop": '"terminated"'}
    in_turn = field in ("reward", "action", "action_ids", "added_ids", "logprobs", "messages")
    (turn if in_turn or field == "info" else episode)[field] = value

    def joined(values: dict[str, str]) -> str:
        return "{" + ", ".join(f'"{name}": {text}' for name, text in values.items()) + "}"

    episode = {"turns": f"[{joined(turn)}]", **episode}
    path = tmp_path / "record.jsonl"
    path.write_text(f'{{"gem_record": 1}}\n{joined(episode)}\n')
    with pytest.raises(RecordError, match="line 2"):
        list(read_episodes(path))


def test_reading_a_missing_record_raises(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be opened"):
        list(read_episodes(tmp_path / "none.jsonl"))


def test_a_record_can_be_read_from_a_pipe(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "run.jsonl") as writer:
        writer.write_all([full_episode(), full_episode()])
    with subprocess.Popen(["cat", tmp_path / "run.jsonl"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(list(read_episodes(f"/dev/fd/{process.stdout.fileno()}"))) == 2


def test_episodes_before_an_error_are_recorded(tmp_path: Path) -> None:
    def episodes() -> Iterator[Episode]:
        yield full_episode()
        raise ValueError("no more")

    records = WorkerRecords("0")
    path = tmp_path / "run.jsonl"
    with pytest.raises(ValueError, match="no more"):
        records.write(str(path), episodes())
    assert len(list(read_episodes(path))) == 1
    records.close()


def test_second_writer_on_one_file_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with RecordWriter(tmp_path / "r.jsonl") as record:
        with pytest.raises(RecordError, match="another process, or a RecordWriter"):
            RecordWriter(tmp_path / "r.jsonl")
        record.write(full_episode())
    with pytest.raises(RecordError, match="closed"):
        record.write(full_episode())


def test_file_system_without_locks_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(full_episode())
    assert list(read_episodes(tmp_path / "r.jsonl")) == [full_episode()]


def test_garbage_collected_writer_releases_its_file(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "r.jsonl").write(full_episode())
    gc.collect()
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(full_episode())
    assert len(list(read_episodes(tmp_path / "r.jsonl"))) == 2


def test_advantages_and_sequences_can_be_computed_from_a_record(tmp_path: Path) -> None:
    episodes = [full_episode(0), full_episode(1), failed_episode()]
    with RecordWriter(tmp_path / "r.jsonl") as record:
        for episode in episodes:
            record.write(episode)
    restored = list(read_episodes(tmp_path / "r.jsonl"))
    assert advantages(restored, "rebn", gamma=0.9) == advantages(episodes, "rebn", gamma=0.9)
    assert [token_sequences(e) for e in restored] == [token_sequences(e) for e in episodes]


KEY = "correct-horse-battery"


def test_environment_variable_keys_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, secrets=["named-by-caller"]) as record:
        monkeypatch.setenv("SOME_API_KEY", KEY)  # set after the writer was created
        failure = Failure(
            "HTTPError", f"401 with {KEY}", "generate", f"Traceback\n  headers={{'x': '{KEY}'}}"
        )
        info = {
            "argv": ["--key", KEY],
            "deep": {"t": (f"={KEY}",), f"k{KEY}": object()},
            "by": "named-by-caller",
            "b": KEY.encode(),
        }
        record.write(
            full_episode(
                final_info=info,
                options={"auth": KEY},
                wrappers=f'[["search", {{"key": "{KEY}"}}]]',
                failure=failure,
            )
        )
    text = path.read_text()
    assert KEY not in text
    assert "named-by-caller" not in text
    episode = next(read_episodes(path))
    assert episode.options == {"auth": REDACTED}
    assert episode.turns == full_episode().turns  # the ids are unchanged


@pytest.mark.parametrize("place", ["message", "action", "final"])
def test_conversation_with_a_key_is_recorded_without_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", KEY)
    turn = Turn(
        (Message("user", f"env: {KEY if place == 'message' else ''}"),),
        KEY if place == "action" else "a",
        1.0,
        (1,),
        True,
        (2,),
        (-0.5,),
    )
    episode = Episode(
        "x:Y", 1, (turn,), StopReason.TERMINATED, final_observation=KEY if place == "final" else ""
    )
    with (
        RecordWriter(tmp_path / "r.jsonl") as record,
        pytest.warns(UserWarning, match="redacted, without token ids"),
    ):
        record.write(episode)
    assert KEY not in (tmp_path / "r.jsonl").read_text()
    restored = next(read_episodes(tmp_path / "r.jsonl"))
    assert not restored.trainable
    assert restored.turns[0].action_ids == restored.turns[0].added_ids == ()
    assert restored.total_reward == 1.0


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET / Authorization: Bearer abc.def.ghi\r\nHost: x", "abc.def.ghi"),
        ("{'authorization': 'Basic dXNlcjpwYXNz', 'host': 'x'}", "dXNlcjpwYXNz"),
        ("[(b'X-Api-Key', b'k-1234'), (b'host', b'x')]", "k-1234"),
        ('{"Cookie": "session=99887766", "a": 1}', "99887766"),
        ("https://ann:hunter2@host/path", "hunter2"),
        ("https://host/?api_key=zzzz1111&q=host", "zzzz1111"),
        ("token sk-abcdefghijklmnop1234 refused by host", "sk-abcdefghijklmnop1234"),
        ("connect host=x password=hunter2 port=1", "hunter2"),
        ("PGPASSWORD=hunter2 psql", "hunter2"),
        ("jdbc:x://host;Password=hunter2;User=a", "hunter2"),
        ("{'client_secret': 'hunter2', 'host': 1}", "hunter2"),
        ("POST https://host/?token=abc12345678&q=1", "abc12345678"),
        ("X-Vault-Token: s.9988\r\nHost: x", "s.9988"),
        ("password: hunter2", "hunter2"),
        ("cannot start: server --host x --api-key hunter2 --port 1", "hunter2"),
        ("server --db-password 'hunter2 x' --host y", "hunter2"),
        ("https://abcdef0123456789@host/path", "abcdef0123456789"),
        ("redis://:hunter2@host/0", "hunter2"),
        ("host sent eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2lnbmF0", "eyJzdWIiOiIx"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\n-----END RSA PRIVATE KEY-----", "MIIEabc"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEabc+/=\nMIIF", "MIIF"),
        ("host: xoxb-123456789012-abcdef", "xoxb-123456789012-abcdef"),
        ("host: AIzaSyA0123456789abcdefghijklmnopqrstuv", "AIzaSyA0123456789abcdef"),
        ("host: glpat-abcdefghij0123456789", "glpat-abcdefghij0123456789"),
        ("host: github_pat_11ABCDEFG0123456789abcdef", "github_pat_11ABCDEFG"),
    ],
)
def test_program_text_is_redacted_for_headers_urls_and_key_shapes(text: str, secret: str) -> None:
    redacted = Redactor().program_text(text)
    assert secret not in redacted
    assert REDACTED in redacted
    assert redacted.count("ost") == text.count("ost")  # nothing else is lost
    assert Redactor().program_text(redacted) == redacted  # redacting is idempotent


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=2048 eos_token=<|im_end|> secret=elephant token: the",
        "def f(password=None, token=token): return key == answer_key",
        "password_length=12 ssh://git@host/x a@b.example",
        "train --max-tokens 2048 --eos-token <|im_end|> --password --token",
    ],
)
def test_harmless_names_in_text_are_kept(text: str) -> None:
    assert Redactor().program_text(text) == text


def test_argument_after_a_secret_option_is_redacted() -> None:
    arguments = ["--host", "shop", "--api-key", "abcd-1234", "--token", 7, "abcd"]
    redacted = ["--host", "shop", "--api-key", REDACTED, "--token", 7, "abcd"]
    assert without_secrets({"args": arguments}) == {"args": redacted}
    assert without_secrets({"args": tuple(arguments)}) == {"args": tuple(redacted)}


def test_redacting_a_long_text_takes_linear_time() -> None:
    started = time.process_time()
    for text in ("a-" * 200_000, "x" * 400_000, "://" * 100_000, "a:" * 200_000):
        assert Redactor().program_text(text) == text
    assert time.process_time() - started < 10


def test_all_values_of_env_variables_and_headers_are_redacted() -> None:
    config = {
        "env": {"PGPASSWORD": "hunter2", "DB_PASS": "hunter2", "LANG": "C"},
        "headers": {"X-Tenant": "hunter2", "Accept": "text"},
        "extra_headers": [("X-Tenant", "hunter2")],
        "api_keys": ["hunter2", {"a": "hunter2", "n": 3}],
        "credentials": {"user": "ann", "parts": ("hunter2",)},
        "password": {"hunter2"},
    }
    redacted = without_secrets(config)
    assert "hunter2" not in repr(redacted)
    assert redacted["env"]["LANG"] == "C"
    assert redacted["headers"]["Accept"] == "text"
    assert redacted["api_keys"] == [REDACTED, {"a": REDACTED, "n": 3}]
    assert without_secrets(redacted) == redacted
    game = {
        "env": {"id": "game:X-v0"},
        "secrets": ["cat"],
        "tokens": ["a", "b"],
        "headers": ["name", "age"],
    }
    assert from_plain(to_plain(game, Redactor(), info=True)) == game


def test_header_mappings_are_redacted_by_name(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(
            full_episode(
                final_info={"headers": {"Authorization": "odd", "Accept": "text"}, "secret": "cat"}
            )
        )
    assert next(read_episodes(tmp_path / "r.jsonl")).final_info == {
        "headers": {"Authorization": REDACTED, "Accept": "text"},
        "secret": "cat",
    }


SECRET_NAMES = [
    "token", "secret", "password", "passwd", "api_key", "apikey", "apiKey", "credential",
    "credentials", "private_key", "SERVICE_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY",
    "OPENAI_KEY", "hf-token", "X-Custom-Token", "clientSecret", "auth", "cookies", "bearer",
]  # fmt: skip
PLAIN_NAMES = [
    "max_tokens", "tokens", "num_tokens", "token_limit", "stop_token_ids", "tokenizer",
    "token_type", "eos_token", "pad_token", "next_token", "answer_key", "question_key", "key",
    "secret_word", "password_length", "secretary", "keyboard", "monkey",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_values_under_secret_names_are_not_recorded(tmp_path: Path, name: str) -> None:
    stack = json.dumps(
        [["boxed", {}], ["mcp", {"command": "server", "env": {name: "abcd-1234", "LANG": "C"}}]],
        sort_keys=True,
    )
    kwargs = {name: "abcd-1234", "deep": [{name: b"abcd-1234"}], "seen": {name: 3}}
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, meta={"plan": kwargs}) as record:
        record.write(full_episode(env_kwargs=kwargs, options=kwargs, wrappers=stack))
    assert "abcd-1234" not in path.read_text()
    episode = next(read_episodes(path))
    redacted = {name: REDACTED, "deep": [{name: REDACTED}], "seen": {name: 3}}
    assert episode.env_kwargs == episode.options == redacted
    assert json.loads(episode.wrappers) == [
        ["boxed", {}],
        ["mcp", {"command": "server", "env": {name: REDACTED, "LANG": "C"}}],
    ]


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_values_under_harmless_names_are_recorded(tmp_path: Path, name: str) -> None:
    stack = json.dumps([["token_limit", {name: "seven"}]])
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(
            full_episode(env_kwargs={name: "seven"}, final_info={name: "seven"}, wrappers=stack)
        )
    episode = next(read_episodes(tmp_path / "r.jsonl"))
    assert episode.env_kwargs == episode.final_info == {name: "seven"}
    assert episode.wrappers == stack


def test_info_keeps_a_word_to_guess_but_not_a_password(tmp_path: Path) -> None:
    info = {
        "state": [{"secret": "cat", "token": "the"}],
        "env": {"SERVICE_TOKEN": "abcd", "db_password": "abcd"},
    }
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(full_episode(final_info=info))
    redacted = {"SERVICE_TOKEN": REDACTED, "db_password": REDACTED}
    assert next(read_episodes(tmp_path / "r.jsonl")).final_info == {**info, "env": redacted}


# The wrappers of an unknown environment are recorded as a repr.
@pytest.mark.parametrize("env", ["game:GuessTheNumber-v0-easy", "test:Nowhere-v0"])
def test_secrets_in_wrapper_arguments_are_not_recorded(tmp_path: Path, env: str) -> None:
    path = tmp_path / "r.jsonl"
    arguments = {
        "url": "http://ann:hunter2@host",
        "headers": {"Authorization": "odd", "A": "b"},
        "env": {"SERVICE_TOKEN": "abcd-1234"},
    }
    task = Task(env, 0, wrappers=(("retrieval", arguments),))
    with RecordWriter(path) as record:
        record.write(Episode(env, 0, (), StopReason.TERMINATED, wrappers=wrappers_of(task)))
    assert not [secret for secret in ("hunter2", "odd", "abcd-1234") if secret in path.read_text()]


def test_without_secrets_changes_nothing_else() -> None:
    data = {
        "a": (1, [2.5, None]),
        3: "x",
        "headers": {"Authorization": "odd"},
        "url": "http://ann:hunter2@host",
    }
    redacted = {**data, "headers": {"Authorization": REDACTED}, "url": f"http://{REDACTED}@host"}
    assert without_secrets(data) == redacted
    assert without_secrets(redacted) == redacted


def test_short_or_harmless_variables_are_not_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("GREETING", "good morning")
    text = "false good morning, cookie jar, the key is 5"
    assert Redactor().program_text(text) == text


def test_each_worker_writes_its_own_record(tmp_path: Path) -> None:
    for seed in range(2):
        worker = WorkerRecords()
        worker.write(str(tmp_path / "{rank}.jsonl"), [full_episode(seed), failed_episode()])
        worker.write(None, [full_episode(seed)])
        worker.close()
    paths = sorted(tmp_path.iterdir())
    assert [len(list(read_episodes(path))) for path in paths] == [2, 2]


def test_second_worker_on_a_path_without_rank_gets_a_remedy(
    tmp_path: Path,
) -> None:
    pytest.importorskip("fcntl")
    first, second = WorkerRecords(), WorkerRecords()
    first.write(str(tmp_path / "run.jsonl.gz"), [full_episode(0), full_episode(1)])
    with pytest.raises(RecordError, match=r"put \{rank\} into the path") as raised:
        second.write(str(tmp_path / "run.jsonl.gz"), [full_episode(0)])
    suggested = re.search(r"for example (\S+run-\{rank\}\.jsonl\.gz);", str(raised.value))
    assert suggested is not None
    second.write(suggested[1], [full_episode(0)])
    first.close()
    second.close()
    assert [len(list(read_episodes(path))) for path in sorted(tmp_path.iterdir())] == [1, 2]


def test_non_record_error_does_not_suggest_a_rank(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("mine\n")
    with pytest.raises(RecordError, match="not a gem record") as raised:
        WorkerRecords().write(str(tmp_path / "run.jsonl"), [full_episode(0)])
    assert "rank" not in str(raised.value)
