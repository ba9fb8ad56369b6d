"""Run every attack against every kind of sandbox, and check the table in docs/sandbox.md.

After a change: GEM_WRITE_DOCS=1 pytest tests/gem_tools/test_attacks.py -k table
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import ROOT, SUPPORT
from sandbox_attacks import ATTACKS, HARDER, KINDS, SECRET, expected

DOCUMENT = ROOT / "docs" / "sandbox.md"
BEGIN = "<!-- the table is written by tests/gem_tools/test_attacks.py -->"
END = "<!-- the end of the table -->"
CELLS = {
    True: "contained",
    False: "**not contained**",
    "user": "contained, unless gem runs as root",
    "root": "contained only if gem runs as root",
    "ns": "contained, unless the kernel allows it",
    "cap": "contained, unless gem may raise limits (root)",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that others can enter: under root, sandboxed programs run as another user."""
    with tempfile.TemporaryDirectory(prefix="gem-attacks-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def run_attacks(kind: str, folder: Path, *names: str) -> dict[str, dict[str, object]]:
    """Run attacks in a victim process and return its reports.

    An attack without a report killed the victim, so it was not contained.
    """
    settings = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ATTACK_ME": SECRET,
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, SUPPORT / "sandbox_attacks.py", kind, folder, *names],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, -9), done.stderr
    reports = {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}
    killed = {"contained": False, "reason": "it killed the process that runs the sandbox"}
    return {name: reports.get(name, killed) for name in names}


@pytest.mark.parametrize("kind", [*KINDS, HARDER])
def test_attacks_are_contained_as_documented(kind: str, folder: Path) -> None:
    column = list(KINDS).index("fallback" if kind == HARDER else kind)
    reports = run_attacks(kind, folder, *(name for name in ATTACKS if name != "kill_parent"))
    reports |= run_attacks(kind, folder, "kill_parent")
    wrong = {
        name: report
        for name, report in reports.items()
        if report["contained"] is not expected(ATTACKS[name].held[column], kind == HARDER)
    }
    assert not wrong


def test_bubblewrap_contains_every_attack() -> None:
    assert all(attack.held[0] is True for attack in ATTACKS.values())


def test_table_in_the_docs_is_up_to_date() -> None:
    rows = [
        f"| {attack.title} | {' | '.join(CELLS[held] for held in attack.held)} |"
        for attack in ATTACKS.values()
    ]
    heads = ["attack", "bubblewrap", "fallback", "fallback without Landlock and seccomp"]
    table = "\n".join([f"| {' | '.join(heads)} |", "|---|---|---|---|", *rows])
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    inside, _, after = rest.partition(END)
    if os.environ.get("GEM_WRITE_DOCS"):
        DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
        return
    assert inside.strip() == table, (
        "update it: GEM_WRITE_DOCS=1 pytest tests/gem_tools/test_attacks.py -k table"
    )
