"""The attack suite: each attack against each kind of sandbox, and the table in docs/sandbox.md that says how it ends.

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
from sandbox_attacks import ATTACKS, HARDER, KINDS, SECRET, Held, expected

DOCUMENT = ROOT / "docs" / "sandbox.md"
BEGIN, END = (
    "<!-- the table is written by tests/gem_tools/test_attacks.py -->",
    "<!-- the end of the table -->",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can enter, as those of pytest cannot be: run by root, the programs are another user."""
    with tempfile.TemporaryDirectory(prefix="gem-attacks-") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def attacked(kind: str, folder: Path, *names: str) -> dict[str, dict[str, object]]:
    """What the victim reports; an attack it did not live to report was not contained."""
    program = SUPPORT / "sandbox_attacks.py"
    done = subprocess.run(
        [sys.executable, program, kind, folder, *names],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "ATTACK_ME": SECRET,
            "TMPDIR": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, -9), done.stderr
    found = {said["name"]: said for said in map(json.loads, done.stdout.splitlines())}
    return {
        name: found.get(
            name, {"contained": False, "said": "it killed the process that runs the sandbox"}
        )
        for name in names
    }


@pytest.mark.parametrize("kind", [*KINDS, HARDER])
def test_each_attack_ends_as_the_table_says(kind: str, folder: Path) -> None:
    column = list(KINDS).index("fallback" if kind == HARDER else kind)
    found = attacked(kind, folder, *(name for name in ATTACKS if name != "kill_parent"))
    found |= attacked(kind, folder, "kill_parent")
    wrong = {
        name: said
        for name, said in found.items()
        if said["contained"] is not expected(ATTACKS[name].held[column], kind == HARDER)
    }
    assert not wrong


def test_bubblewrap_contains_every_attack() -> None:
    assert all(attack.held[0] is True for attack in ATTACKS.values())


def test_the_table_in_the_documentation_is_this_one() -> None:
    said = {
        True: "contained",
        False: "**not contained**",
        "user": "contained, unless gem runs as root",
    }
    said["root"] = "contained only where gem runs as root"
    said["ns"] = "contained, unless the kernel allows it"
    said["cap"] = "contained, unless gem may raise limits (root)"

    def cell(held: Held) -> str:
        return said[held]

    rows = [
        f"| {a.title} | {' | '.join(cell(held) for held in a.held)} |" for a in ATTACKS.values()
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
        "write it anew: GEM_WRITE_DOCS=1 pytest tests/gem_tools/test_attacks.py -k table"
    )
