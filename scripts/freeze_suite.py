"""Write the hashes of a new suite's transcripts: `python scripts/freeze_suite.py gem-eval-v1`.

A suite that was released is never frozen anew: its changed environments make a new suite.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gem_eval.suite.suite import suite_named
from gem_eval.suite.transcripts import replayed_hashes

FOLDER = Path(__file__).parents[1] / "plugins" / "gem_eval" / "suite"


def main(name: str) -> None:
    """Play every environment of the suite and write the file next to the suite's module."""
    suite = suite_named(name)
    hashes = {}
    for id in suite.ids:
        hashes[id] = replayed_hashes(id, suite)
        if hashes[id] != replayed_hashes(id, suite):
            raise SystemExit(f"{id} played two different transcripts with the same seeds")
        print(id, *hashes[id], flush=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
