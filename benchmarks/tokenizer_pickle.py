"""Measure how long it takes to pickle a tokenizer and to load it again.

    python benchmarks/tokenizer_pickle.py              # the tiny model's and SmolLM2's

Stock OpenRLHF passes its tokenizer to the Ray call of every prompt, and Ray pickles the arguments
of a call. The adapter passes a reference.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from gem_core.policies.models import load_model

REPEATS = 10


def seconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def main() -> None:
    print("| Tokenizer | tokens | bytes | pickle | load |")
    print("|---|---|---|---|---|")
    for name in ("tiny", "smollm2"):
        _, tokenizer = load_model(name)
        data = pickle.dumps(tokenizer)
        dump = seconds(lambda tokenizer=tokenizer: pickle.dumps(tokenizer))
        load = seconds(lambda data=data: pickle.loads(data))
        sizes = f"{len(tokenizer):,} | {len(data):,}"
        print(f"| {name} | {sizes} | {1000 * dump:.1f} ms | {1000 * load:.1f} ms |")


if __name__ == "__main__":
    main()
