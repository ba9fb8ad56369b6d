"""Execution benchmark: the table in the docs is the committed result."""

from __future__ import annotations

import json

from project import ROOT


def test_the_page_has_the_committed_figures() -> None:
    result = json.loads((ROOT / "benchmarks/results/execution.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/vector.md").read_text(encoding="utf-8")
    base = result["rows"][0]["wall_seconds"]
    for row in result["rows"]:
        name = f"`ray`, {row['hosts']} hosts" if row["hosts"] else f"`{row['execution']}`"
        assert (
            f"| {name} | {row['first_seconds']} | {row['wall_seconds']} | {row['cpu_seconds']} "
            f"| {row['steps_per_second']} | {base / row['wall_seconds']:.1f}x |"
        ) in page
    assert f"on {result['cores']} cores" in page
    assert f"{result['episodes']} episodes at once, {result['turns']} steps" in page
