"""The first observations of a frozen suite never change."""

from __future__ import annotations

import pytest

from gem_eval.suite.fingerprints import FINGERPRINTS
from gem_eval.suite.suite import GEM_EVAL_V1, fingerprint


@pytest.mark.parametrize("id", FINGERPRINTS)
def test_first_observations_are_frozen(id: str) -> None:
    assert fingerprint(id, GEM_EVAL_V1) == FINGERPRINTS[id], "make a new suite, gem-eval-v2"
