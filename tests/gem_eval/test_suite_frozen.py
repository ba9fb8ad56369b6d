"""The transcripts of a frozen suite never change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gem_core.env.registry import environments
from gem_eval.suite.suite import GEM_EVAL_V1
from gem_eval.suite.transcripts import frozen_hashes, replayed_hashes

FROZEN = frozen_hashes(GEM_EVAL_V1.name)
IDS = [id for id in GEM_EVAL_V1.ids if environments.get(id).extra != "mcp-suite"]
"""tests/gem_envs/mcp_suite has the others, which need another version of mcp than OpenEnv."""


def test_every_id_and_seed_is_frozen() -> None:
    assert list(FROZEN) == list(GEM_EVAL_V1.ids)
    assert {len(hashes) for hashes in FROZEN.values()} == {GEM_EVAL_V1.seeds}
    assert not any("failed" in hash for hashes in FROZEN.values() for hash in hashes)


@pytest.mark.parametrize("id", IDS)
def test_first_transcript_is_frozen(id: str) -> None:
    first = replace(GEM_EVAL_V1, seeds=1)
    assert replayed_hashes(id, first) == FROZEN[id][:1], "make a new suite, gem-eval-v2"


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_all_transcripts_are_frozen(id: str) -> None:
    assert replayed_hashes(id, GEM_EVAL_V1) == FROZEN[id], "make a new suite, gem-eval-v2"
