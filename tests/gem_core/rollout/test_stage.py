"""Stage: episodes that a trainer asks for one by one share environments and threads, and wait for none but themselves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from misbehaving import Blocking

from gem_core import Episode, Limits, Renderer, Sampling, ScriptedPolicy, Task, register
from gem_core.env.registry import environments
from gem_core.errors import RecordError
from gem_core.records.file import read_episodes
from gem_core.rollout.stage import Stage

MADE: list[Any] = []


class Slow(Blocking):
    """Takes its time over every step, on whichever thread."""

    def __init__(self) -> None:
        super().__init__(seconds=0.2)
        MADE.append(self)


@pytest.fixture(autouse=True)
def registered() -> Any:
    register("test:Slow-v0", Slow)
    MADE.clear()
    yield
    environments.remove("test:Slow-v0")


async def play(stage: Stage, count: int) -> list[Episode]:
    tokenizer = ByteTokenizer()
    policy, renderer = ScriptedPolicy(lambda _: "1", tokenizer), Renderer(tokenizer)
    asked = [stage.play(Task("test:Slow-v0", i), policy, renderer, Sampling(), Limits(max_turns=2)) for i in range(count)]
    return list(await asyncio.gather(*asked))


def test_as_many_threads_as_episodes_that_are_under_way() -> None:
    stage = Stage()
    began = time.monotonic()
    episodes = asyncio.run(play(stage, 12))
    assert time.monotonic() - began < 12 * 2 * 0.2 / 2, "twelve episodes of two slow steps were played one after the other"
    assert all(len(e.turns) == 2 and not e.failed for e in episodes)


def test_environments_serve_again() -> None:
    async def twice() -> None:
        stage = Stage()
        await play(stage, 3)
        await play(stage, 3)

    asyncio.run(twice())
    assert len(MADE) == 3


def test_every_stage_has_a_record_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        stage = Stage()
        for episode in asyncio.run(play(stage, 2)):
            stage.record(str(tmp_path / "{rank}.jsonl"), episode)
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 2
    assert [len(list(read_episodes(path))) for path in paths] == [2, 2]


def test_a_record_without_a_rank_serves_one_stage_and_the_next_is_told_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    first, second = Stage(), Stage()
    episodes = asyncio.run(play(first, 2))
    for episode in episodes:
        first.record(str(tmp_path / "run.jsonl.gz"), episode)
    with pytest.raises(RecordError, match=r"put \{rank\}, which.*run-\{rank\}\.jsonl\.gz") as refused:
        second.record(str(tmp_path / "run.jsonl.gz"), episodes[0])
    second.record(str(refused.value).rsplit(" ", 1)[1], episodes[0])  # which works
    assert [len(list(read_episodes(path))) for path in sorted(tmp_path.iterdir())] == [1, 2]


def test_a_file_that_is_no_record_is_not_blamed_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("mine\n")
    (episode,) = asyncio.run(play(stage := Stage(), 1))
    with pytest.raises(RecordError, match="no record of gem") as refused:
        stage.record(str(tmp_path / "run.jsonl"), episode)
    assert "rank" not in str(refused.value)
