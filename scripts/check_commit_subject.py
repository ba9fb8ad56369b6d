"""Check that a commit subject is `scope: what changed` and at most 72 characters long.

pre-commit runs it as a commit-msg hook with the path of the message file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MAX_LENGTH = 72


def problem(subject: str) -> str | None:
    """Return what is wrong with the subject, or None."""
    if len(subject) > MAX_LENGTH:
        return f"the subject has {len(subject)} characters; use at most {MAX_LENGTH}"
    if not re.match(r"[a-z0-9_./-]+: \S", subject):
        return "expected `scope: what changed`, such as `trl: reject sequence-level ratios`"
    return None


if __name__ == "__main__":
    subject = Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]
    message = problem(subject)
    if message is not None:
        sys.exit(f"{subject!r}: {message}")
