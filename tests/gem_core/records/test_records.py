"""A record gives back what was written, loses nothing to a kill, and never holds a secret."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import subprocess
import sys
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
def test_an_episode_survives_json_exactly(episode: Episode) -> None:
    assert episode_from_json(json.loads(json.dumps(episode_to_json(episode)))) == episode


def test_what_an_environment_was_made_with_comes_back_as_it_was() -> None:
    episode = full_episode(env_kwargs={"dim_room": (6, 6), "odds": {1: float("inf")}})
    back = episode_from_json(json.loads(json.dumps(episode_to_json(episode))))
    assert back == episode
    assert back.env_kwargs["dim_room"] == (6, 6)
    assert back.group == episode.group


def test_ids_are_written_as_deltas_and_not_as_whole_prompts() -> None:
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
def test_info_beyond_json_comes_back_as_it_was(value: object) -> None:
    episode = full_episode(final_info={"it": value})
    found = episode_from_json(json.loads(json.dumps(episode_to_json(episode)))).final_info["it"]
    assert found == value
    assert type(found) is type(value)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"bytes", object(), Unprintable(), endless(), ValueError("x"), lambda: 0, 1 + 2j],
)
def test_info_that_cannot_be_kept_is_marked_as_shown_and_is_stable(value: object) -> None:
    once = episode_from_json(
        json.loads(json.dumps(episode_to_json(full_episode(final_info={"it": value}))))
    )
    assert "OpaqueValue(" in repr(once.final_info)
    assert episode_from_json(json.loads(json.dumps(episode_to_json(once)))) == once


@pytest.mark.parametrize("name", SUFFIXES)
def test_a_record_grows_over_several_writers(tmp_path: Path, name: str) -> None:
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


@pytest.mark.parametrize("name", SUFFIXES)
def test_a_file_cut_anywhere_loses_only_what_was_cut(tmp_path: Path, name: str) -> None:
    whole, ends = tmp_path / name, []
    with RecordWriter(whole) as record:
        ends.append(whole.stat().st_size)
        for seed in range(3):
            record.write(full_episode(seed))
            ends.append(whole.stat().st_size)
    data = whole.read_bytes()
    cut = tmp_path / f"cut-{name}"
    for length in range(0, len(data), 7):
        kept = sum(1 for end in ends[1:] if end <= length)
        cut.write_bytes(data[:length])
        assert [e.seed for e in read_episodes(cut)] == list(range(kept))
        with RecordWriter(cut) as record:
            record.write(full_episode(9))
        assert [e.seed for e in read_episodes(cut)] == [*range(kept), 9]


def test_zeros_behind_the_end_are_no_episodes(tmp_path: Path) -> None:
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
def test_kill_9_loses_no_episode_that_was_written(tmp_path: Path, name: str) -> None:
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
def test_damage_in_the_middle_is_an_error_that_names_the_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with RecordWriter(path) as record:
        at = path.stat().st_size
        for seed in range(3):
            record.write(full_episode(seed))
    data = bytearray(path.read_bytes())
    data[at + 2 : at + 30] = b"#" * 28
    path.write_bytes(data)
    with pytest.raises(RecordError, match="line 2"):
        list(read_episodes(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": 1}\n', "no record of gem"),
        ("hello\n", "no record of gem"),
        ('{"gem_record": 99}\n', "version 99"),
        ('{"gem_record": 1}\n{"env_id": "x"}\n', "line 2"),
        (
            '{"gem_record": 1}\n{"env_id": "x", "seed": 1, "turns": [], "stop": "terminated", "new": 1}\n',
            "'new'",
        ),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text(content)
    with pytest.raises(RecordError, match=said):
        list(read_episodes(path))
    if "line 2" not in said and "new" not in said:
        with pytest.raises(RecordError, match=said):
            RecordWriter(path)
        assert path.read_text() == content


def test_a_missing_record_is_an_error_to_a_reader(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be opened"):
        list(read_episodes(tmp_path / "none.jsonl"))


def test_two_writers_on_one_file_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with RecordWriter(tmp_path / "r.jsonl") as record:
        with pytest.raises(RecordError, match="somebody else"):
            RecordWriter(tmp_path / "r.jsonl")
        record.write(full_episode())
    with pytest.raises(RecordError, match="closed"):
        record.write(full_episode())


def test_a_writer_that_nobody_holds_lets_its_file_go(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "r.jsonl").write(full_episode())
    gc.collect()
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(full_episode())
    assert len(list(read_episodes(tmp_path / "r.jsonl"))) == 2


def test_a_record_feeds_credit_and_rows_without_a_model(tmp_path: Path) -> None:
    episodes = [full_episode(0), full_episode(1), failed_episode()]
    with RecordWriter(tmp_path / "r.jsonl") as record:
        for episode in episodes:
            record.write(episode)
    again = list(read_episodes(tmp_path / "r.jsonl"))
    assert advantages(again, "rebn", gamma=0.9) == advantages(episodes, "rebn", gamma=0.9)
    assert [token_sequences(e) for e in again] == [token_sequences(e) for e in episodes]


KEY = "correct-horse-battery"


def test_a_key_of_the_environment_never_lands_in_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, secrets=["given-by-hand"]) as record:
        monkeypatch.setenv("SOME_API_KEY", KEY)  # set after the writer was made
        failure = Failure(
            "HTTPError", f"401 with {KEY}", "generate", f"Traceback\n  headers={{'x': '{KEY}'}}"
        )
        info = {
            "argv": ["--key", KEY],
            "deep": {"t": (f"={KEY}",), f"k{KEY}": object()},
            "by": "given-by-hand",
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
    assert "given-by-hand" not in text
    found = next(read_episodes(path))
    assert found.options == {"auth": REDACTED}
    assert found.turns == full_episode().turns  # the ids are as they were


@pytest.mark.parametrize("place", ["message", "action", "final"])
def test_a_key_that_was_shown_to_the_model_takes_the_ids_with_it(
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
    found = next(read_episodes(tmp_path / "r.jsonl"))
    assert not found.trainable
    assert found.turns[0].action_ids == found.turns[0].added_ids == ()
    assert found.total_reward == 1.0


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
    ],
)
def test_headers_urls_and_key_shapes_are_redacted_in_what_programs_say(
    text: str, secret: str
) -> None:
    said = Redactor().said(text)
    assert secret not in said
    assert REDACTED in said
    assert said.count("ost") == text.count("ost")  # and nothing else is lost
    assert (
        Redactor().said(said) == said
    )  # what is read from a record and compared is redacted once more


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
    *(
        "token",
        "secret",
        "password",
        "passwd",
        "api_key",
        "apikey",
        "apiKey",
        "credential",
        "credentials",
        "private_key",
    ),
    *(
        "SERVICE_TOKEN",
        "DB_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "OPENAI_KEY",
        "hf-token",
        "X-Custom-Token",
        "clientSecret",
    ),
]
PLAIN_NAMES = [
    *(
        "max_tokens",
        "tokens",
        "num_tokens",
        "token_limit",
        "stop_token_ids",
        "tokenizer",
        "token_type",
        "eos_token",
        "pad_token",
    ),
    *(
        "next_token",
        "answer_key",
        "question_key",
        "key",
        "secret_word",
        "password_length",
        "secretary",
        "keyboard",
        "monkey",
    ),
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_what_stands_under_the_name_of_a_secret_is_not_recorded(tmp_path: Path, name: str) -> None:
    stack = json.dumps(
        [["boxed", {}], ["mcp", {"command": "server", "env": {name: "abcd-1234", "LANG": "C"}}]],
        sort_keys=True,
    )
    made = {name: "abcd-1234", "deep": [{name: b"abcd-1234"}], "seen": {name: 3}}
    path = tmp_path / "r.jsonl"
    with RecordWriter(path, meta={"plan": made}) as record:
        record.write(full_episode(env_kwargs=made, options=made, wrappers=stack))
    assert "abcd-1234" not in path.read_text()
    found = next(read_episodes(path))
    assert (
        found.env_kwargs
        == found.options
        == {name: REDACTED, "deep": [{name: REDACTED}], "seen": {name: 3}}
    )
    assert json.loads(found.wrappers) == [
        ["boxed", {}],
        ["mcp", {"command": "server", "env": {name: REDACTED, "LANG": "C"}}],
    ]


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_that_only_sound_like_a_secret_are_recorded(tmp_path: Path, name: str) -> None:
    stack = json.dumps([["token_limit", {name: "seven"}]])
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(
            full_episode(env_kwargs={name: "seven"}, final_info={name: "seven"}, wrappers=stack)
        )
    found = next(read_episodes(tmp_path / "r.jsonl"))
    assert found.env_kwargs == found.final_info == {name: "seven"}
    assert found.wrappers == stack


def test_an_info_may_hold_the_word_to_be_guessed_and_no_password(tmp_path: Path) -> None:
    info = {
        "state": [{"secret": "cat", "token": "the"}],
        "env": {"SERVICE_TOKEN": "abcd", "db_password": "abcd"},
    }
    with RecordWriter(tmp_path / "r.jsonl") as record:
        record.write(full_episode(final_info=info))
    kept = {"SERVICE_TOKEN": REDACTED, "db_password": REDACTED}
    assert next(read_episodes(tmp_path / "r.jsonl")).final_info == {**info, "env": kept}


@pytest.mark.parametrize(
    "env", ["game:GuessTheNumber-v0-easy", "test:Nowhere-v0"]
)  # a stack, and the repr of one
def test_a_secret_in_the_wrappers_is_not_recorded(tmp_path: Path, env: str) -> None:
    path = tmp_path / "r.jsonl"
    given = {
        "url": "http://ann:hunter2@host",
        "headers": {"Authorization": "odd", "A": "b"},
        "env": {"SERVICE_TOKEN": "abcd-1234"},
    }
    task = Task(env, 0, wrappers=(("retrieval", given),))
    with RecordWriter(path) as record:
        record.write(Episode(env, 0, (), StopReason.TERMINATED, wrappers=wrappers_of(task)))
    assert not [secret for secret in ("hunter2", "odd", "abcd-1234") if secret in path.read_text()]


def test_data_without_secrets_is_else_the_same() -> None:
    data = {
        "a": (1, [2.5, None]),
        3: "x",
        "headers": {"Authorization": "odd"},
        "url": "http://ann:hunter2@host",
    }
    kept = {**data, "headers": {"Authorization": REDACTED}, "url": f"http://{REDACTED}@host"}
    assert without_secrets(data) == kept
    assert without_secrets(kept) == kept


def test_short_and_harmless_variables_do_not_redact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("GREETING", "good morning")
    assert (
        Redactor().said("false good morning, cookie jar, the key is 5")
        == "false good morning, cookie jar, the key is 5"
    )


def test_every_worker_has_a_record_of_its_own(tmp_path: Path) -> None:
    for seed in range(2):
        worker = WorkerRecords()
        worker.write(str(tmp_path / "{rank}.jsonl"), [full_episode(seed), failed_episode()])
        worker.write(None, [full_episode(seed)])
        worker.close()
    paths = sorted(tmp_path.iterdir())
    assert [len(list(read_episodes(path))) for path in paths] == [2, 2]


def test_a_path_without_a_rank_serves_one_worker_and_the_next_is_told_what_to_do(
    tmp_path: Path,
) -> None:
    pytest.importorskip("fcntl")
    first, second = WorkerRecords(), WorkerRecords()
    first.write(str(tmp_path / "run.jsonl.gz"), [full_episode(0), full_episode(1)])
    with pytest.raises(
        RecordError, match=r"put \{rank\}, which.*run-\{rank\}\.jsonl\.gz"
    ) as refused:
        second.write(str(tmp_path / "run.jsonl.gz"), [full_episode(0)])
    second.write(str(refused.value).rsplit(" ", 1)[1], [full_episode(0)])  # which works
    first.close()
    second.close()
    assert [len(list(read_episodes(path))) for path in sorted(tmp_path.iterdir())] == [1, 2]


def test_a_file_that_is_no_record_is_not_blamed_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("mine\n")
    with pytest.raises(RecordError, match="no record of gem") as refused:
        WorkerRecords().write(str(tmp_path / "run.jsonl"), [full_episode(0)])
    assert "rank" not in str(refused.value)
