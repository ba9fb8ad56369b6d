"""The transcripts of the MCP suite in the frozen evaluation set never change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gem_eval.suite.suite import GEM_EVAL_V1
from gem_eval.suite.transcripts import frozen_hashes, replayed_hashes

IDS = [id for id in GEM_EVAL_V1.ids if id.startswith("mcp:")]


@pytest.mark.parametrize("id", IDS)
def test_first_transcript_is_frozen(id: str) -> None:
    frozen = frozen_hashes(GEM_EVAL_V1.name)[id]
    assert replayed_hashes(id, replace(GEM_EVAL_V1, seeds=1)) == frozen[:1], "make gem-eval-v2"


@pytest.mark.slow
@pytest.mark.parametrize("id", IDS)
def test_all_transcripts_are_frozen(id: str) -> None:
    assert replayed_hashes(id, GEM_EVAL_V1) == frozen_hashes(GEM_EVAL_V1.name)[id]
