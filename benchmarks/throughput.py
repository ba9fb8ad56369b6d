"""Compare the throughput of gem with the reference, and print a markdown table.

    python benchmarks/throughput.py  # first makes a virtual environment for the reference, once
    python benchmarks/throughput.py --only vector,history

It measures import, vectors, history, slow and crashing environments, many episodes, and tokens,
each in its own process. It uses processor time, which other load does not disturb, or wall time if
the measurement includes waiting. `GEM_REFERENCE_PYTHON` names an interpreter that has the
reference. The last row uses the tokenizer that ships with gem, or a pure Python one if transformers
is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from throughput_measures import EARLY, LATE

ROOT = Path(__file__).parents[1]
MEASURES = Path(__file__).with_name("throughput_measures.py").resolve()


def measure(name: str, python: str | Path, times: int = 1) -> Any:
    """Run a function of the measures in a new process; return the fastest of several runs."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "plugins", ROOT / "adapters"))),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if name.endswith("_reference"):
        del environment["PYTHONPATH"]
    results = []
    for _ in range(times):
        command = [str(python), str(MEASURES), name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return min(results, key=lambda result: result["seconds"]) if times > 1 else results[0]


class Table:
    """The rows of the results table, each with whether it passes its threshold."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, str, str]] = []

    def add(
        self, name: str, ours: str, reference: str, ratio: str, threshold: str, passes: bool | None
    ) -> None:
        verdict = "" if passes is None else "passes" if passes else "**fails**"
        self.rows.append((name, ours, reference, ratio, threshold, verdict))
        print(f"  {name}: {ours} | {reference} | {ratio} {verdict}", file=sys.stderr)

    def text(self) -> str:
        head = ("", "gem", "gem-llm 0.1.0", "ratio", "threshold", "")
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])


def row_import(table: Table, theirs: Path) -> None:
    ours = measure("import_ours", sys.executable, 5)
    reference = measure("import_reference", theirs, 3)
    ratio = ours["seconds"] / reference["seconds"]
    shown = [
        f"{m['seconds'] * 1000:.0f} ms, {m['modules']:.0f} modules, {m['megabytes']:.0f} MB"
        for m in (ours, reference)
    ]
    table.add("import, processor time", *shown, f"1/{1 / ratio:.0f}", "at most 1/10", ratio <= 0.1)


def row_vector(table: Table, theirs: Path) -> None:
    for mode, threshold in (("sync", 2), ("async", 5)):
        ours = measure(f"vector_{mode}_ours", sys.executable)
        reference = measure(f"vector_{mode}_reference", theirs)
        for unit in ("per cpu second", "per second"):
            ratio = ours[unit] / reference[unit]
            shown = [f"{m[unit] / 1000:.0f}k" for m in (ours, reference)]
            rate = f"steps {unit.replace('cpu', 'processor')}"
            has_threshold = unit == "per cpu second"
            table.add(
                f"{rate}, {mode} vector, n=128, GuessTheNumber-hard",
                *shown,
                f"{ratio:.1f}x",
                f"at least {threshold}x" if has_threshold else "",
                ratio >= threshold if has_threshold else None,
            )


def row_history(table: Table, theirs: Path) -> None:
    ours, reference = measure("history_ours", sys.executable), measure("history_reference", theirs)
    for name in ("messages", "token deltas"):
        growth = ours[name]["late"] / ours[name]["early"]
        table.add(
            f"history, {name}: turn {LATE} against turn {EARLY}",
            f"{ours[name]['early']:.1f} to {ours[name]['late']:.1f} us",
            "",
            f"{growth:.1f}x",
            "at most 2x",
            growth <= 2,
        )
    # the first two allocate the whole text in every step
    thresholds = {"concat": 4, "concat_with_action": 4, "concat_chat_on_reset": 10}
    for name in (*thresholds, "concat_chat"):
        ratio, threshold = ours[name]["late"] / reference[name]["late"], thresholds.get(name)
        table.add(
            f"history, `{name}`{'' if threshold else ' rendered as text'}: step at turn {LATE}",
            f"{ours[name]['late']:.0f} us",
            f"{reference[name]['late']:.0f} us",
            f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.1f}x",
            f"at most 1/{threshold}" if threshold else "",
            ratio <= 1 / threshold if threshold else None,
        )


def row_slow(table: Table, theirs: Path) -> None:
    ours, reference = measure("slow_ours", sys.executable), measure("slow_reference", theirs)
    kept, reference_kept = (m["together"] / m["alone"] for m in (ours, reference))
    table.add(
        "63 environments with steps of 10 ms: steps/s with a 64th of 1 s, and without it",
        f"{ours['together']:.0f} of {ours['alone']:.0f}/s",
        f"{reference['together']:.0f} of {reference['alone']:.0f}/s",
        f"{kept:.0%} against {reference_kept:.1%}",
        "at least 90%",
        kept >= 0.9,
    )


def row_crash(table: Table, theirs: Path) -> None:
    ours, reference = measure("crash_ours", sys.executable), measure("crash_reference", theirs)
    table.add(
        "one of 64 environments crashes: episodes lost",
        f"{ours['lost']}",
        f"{reference['lost']}",
        "",
        "exactly 1",
        ours["lost"] == 1,
    )


def row_many(table: Table, theirs: Path) -> None:
    ours = measure("many_ours", sys.executable)
    seconds = f"{ours['seconds']:.1f} s ({ours['cpu seconds']:.1f} s processor)"
    table.add(
        f"10,000 concurrent episodes, {ours['turns']} turns",
        f"{seconds}, {ours['megabytes']:.0f} MB",
        "",
        f"{ours['concurrent']} concurrent",
        "all finish",
        ours["finished"] == 10_000 and ours["concurrent"] == 10_000,
    )


def row_tokens(table: Table, theirs: Path) -> None:
    ours = measure("tokens_ours", sys.executable)
    whole = ours["us per turn, rendered whole"]
    rate = f"{ours['tokens per cpu second'] / 1e6:.1f}M tokens per processor second"
    table.add(
        f"one turn of 50, {ours['tokens']} tokens, {ours['tokenizer']}",
        f"{ours['us per turn']:.0f} us, {rate}",
        f"{whole:.0f} us, rendered whole each turn",
        f"{whole / ours['us per turn']:.0f}x",
        "",
        None,
    )


ROWS = {
    "import": row_import,
    "vector": row_vector,
    "history": row_history,
    "slow": row_slow,
    "crash": row_crash,
    "many": row_many,
    "tokens": row_tokens,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(ROWS), help=f"subset of {', '.join(ROWS)}")
    args = parser.parse_args()
    from reference_venv import reference_python

    theirs = reference_python()
    table = Table()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    for name in args.only.split(","):
        ROWS[name](table, theirs)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n{machine}, load {load:.1f} at the start\n")
    print(table.text())


if __name__ == "__main__":
    main()
