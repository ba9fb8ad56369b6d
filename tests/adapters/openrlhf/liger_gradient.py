"""Check that OpenRLHF's gradient with Liger's layers equals a reference gradient.

A program of its own: Ray's workers must have Triton's variable from the start.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    from gem_conformance import GRADIENT_CASES
    from gem_conformance.kit import check_gradient
    from ranks import LigerRank

    from gem_openrlhf.conformance import OpenRLHFHarness

    check_gradient(OpenRLHFHarness(LigerRank), GRADIENT_CASES[2])
