"""Functions that grader processes call in tests."""

from __future__ import annotations

import sys
import time


def explode(what: str) -> str:
    """Return the argument, or fail in the way it names."""
    if what == "raise":
        raise ValueError("boom")
    if what == "die":
        sys.exit(3)
    if what == "hang":
        time.sleep(60)
    if what == "print":
        sys.stdout.write("noise\n")
    return what
