"""Write the results table of docs/evaluation_set.md from the committed results.

    python scripts/evaluation_set_page.py

Each file in benchmarks/results/suite is the `summary.json` of a `gem-rl suite` run. A player may
have several files, for environments that were played on different machines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from gem_core.policies.players import PLAYERS  # noqa: E402
from gem_eval.suite.report import IdResult, family_scores, markdown_table, table  # noqa: E402
from gem_eval.suite.suite import Suite, suite_named  # noqa: E402

PAGE = ROOT / "docs" / "evaluation_set.md"
RESULTS = ROOT / "benchmarks" / "results" / "suite"
HEADING = "## Results\n"


def page() -> str:
    """Return the page with the table of the committed results."""
    runs = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    suite = suite_named(runs[0]["suite"])
    results = _results(runs, suite)
    text = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    lines = [
        "`python scripts/evaluation_set_page.py` writes this section from the files in",
        "`benchmarks/results/suite`: the `summary.json` of each run.",
        "",
        *markdown_table(["PLAYER", "ENVIRONMENTS", "DATE", "SETTINGS"], _runs(runs)),
        "",
        *markdown_table(*table(family_scores(suite, results))),
    ]
    absent = _absent(suite, results)
    if absent:
        lines += ["", "Environments without a result:", "", *absent]
    return f"{text}{HEADING}\n" + "\n".join(lines) + "\n"


def _results(runs: Sequence[dict[str, Any]], suite: Suite) -> list[IdResult]:
    """Return the results of all runs: random, expert, then the models."""
    for run in runs:
        settings = (run["suite"], run["seeds"], run["max_turns"])
        if settings != (suite.name, suite.seeds, None):
            raise SystemExit(f"a run has other settings than the suite: {settings}")
    results = [IdResult(**result) for run in runs for result in run["results"]]
    played = [(result.player, result.id) for result in results]
    if twice := {pair for pair in played if played.count(pair) > 1}:
        raise SystemExit(f"two files have results of {sorted(twice)[0]}")
    return sorted(results, key=lambda r: (_order(r.player), r.player, suite.ids.index(r.id)))


def _order(player: str) -> int:
    return PLAYERS.index(player) if player in PLAYERS else len(PLAYERS)


def _runs(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for run in runs:
        played = [result["player"] for result in run["results"]]
        for player in dict.fromkeys(played):
            settings = f"temperature {run['temperature']:g}, {run['max_tokens']} tokens a turn"
            settings = "" if player in PLAYERS else settings
            rows.append([player, str(played.count(player)), run["date"], settings])
    return sorted(rows, key=lambda row: _order(row[0]))


def _absent(suite: Suite, results: Sequence[IdResult]) -> list[str]:
    lines = []
    for player in dict.fromkeys(result.player for result in results):
        played = {result.id for result in results if result.player == player}
        missing = [f"`{id}`" for id in suite.ids if id not in played]
        if missing:
            lines.append(f"- {player}: {', '.join(missing)}")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
