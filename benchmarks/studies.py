r"""Run the studies of `studies_plan.py`; the commands are those of `algorithms.py`.

    python benchmarks/studies.py list                    # all runs, and which are done
    python benchmarks/studies.py warm-up --model smollm2  # SFT warm-up: the model of all runs
    python benchmarks/studies.py run tuning/ --workers 8 --room 32000
    python benchmarks/studies.py run algorithms/ --workers 8 --room 32000 --seconds 1500
    python benchmarks/studies.py run horizon/ few/pilot- --context 1536 --slots 64 --workers 8 \
        --room 32000
    python benchmarks/studies.py run transfer/ few/ --context 1536 --slots 64 --workers 8 \
        --room 32000
    python benchmarks/studies.py run async/              # its times are results
    python benchmarks/studies.py run larger/ --model runs/larger/model --slots 64 --room 16384
    python benchmarks/studies.py report                  # tables and figures of docs/studies.md

`larger/` starts from the model of `larger_model.py`, all others from that of `warm-up`. A finished
run is one small JSON file in benchmarks/results/studies.

`algorithms.py` describes `--workers`, `--lanes` and `--room`. scenarios/, few/ and runs whose time
is a result need one lane.
"""

from __future__ import annotations

import sys

from algorithms import fix_hash_seed, main
from studies_plan import RESULTS, plan

from gem_core import GemError

if __name__ == "__main__":
    fix_hash_seed()
    try:
        commands = ("list", "warm-up", "run", "report")
        settings = {"planned": plan(), "results": RESULTS, "only_commands": commands}
        sys.exit(main(about=__doc__, reporter="studies_report", **settings))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
