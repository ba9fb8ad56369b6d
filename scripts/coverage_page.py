"""Write docs/coverage.md: the state here of what GEM and AgentGym-RL have.

    python scripts/coverage_page.py

`coverage_rows.py` lists what the papers have and what corresponds to it here. This script looks the
names up in the registries, counts the ids, and derives the state of a row from them. A name that
does not exist is an error, and so is a family of ids in no row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins"), str(ROOT / "adapters"), str(ROOT / "scripts")]

from coverage_rows import ALGORITHMS, CLAIMS, ENVIRONMENTS, INTERFACE, Row  # noqa: E402

from gem_core.adapter_kit.declaration import adapters  # noqa: E402
from gem_core.cli import commands  # noqa: E402
from gem_core.env.registry import environments, list_envs  # noqa: E402
from gem_core.env.wrapper_stack import wrappers  # noqa: E402
from gem_core.training.advantage import estimators  # noqa: E402

PAGE = ROOT / "docs" / "coverage.md"
IN_NEITHER_PAPER = {"openenv", "textworld"}
INTRODUCTION = """# Coverage

Every environment, tool, algorithm and claim of GEM and of AgentGym-RL (with AgentGym), and its
state here. `python scripts/coverage_page.py` writes this page: it looks every name up in the
registries and counts the ids.

- **works**: it runs offline, with tests.
- **differs**: it runs offline on other data or with other rules; the note or the linked page
  explains the difference.
- **elsewhere**: it needs a download or a service; the command is for a machine that has it.
- **checked**: a benchmark here tests the claim; *at 135M* means with a model of 135M parameters.
- **no**: it does not exist.
"""


def page() -> str:
    """Return the page."""
    _check_namespaces(ENVIRONMENTS)
    return "\n".join(
        [
            INTRODUCTION,
            *_table("Environments", "Original", ENVIRONMENTS),
            *_table("Interface, tools and wrappers", "Original", INTERFACE),
            *_table("Algorithms and trainers", "Original", ALGORITHMS),
            *_table("Claims", "Claim", CLAIMS),
        ]
    )


def _table(heading: str, first: str, rows: Iterable[Row]) -> list[str]:
    lines = [f"## {heading}", "", f"| {first} | State | Here |", "|---|---|---|"]
    return [*lines, *[f"| {row.original} | {state_of(row)} | {_here(row)} |" for row in rows], ""]


def state_of(row: Row) -> str:
    """Return the state of a row: as given, or derived from the things that it names."""
    if row.state:
        return row.state
    if row.ids:
        offline = any(environments.get(id).offline for id in _ids(row.ids))
        return ("differs" if row.differs else "works") if offline else "elsewhere"
    if row.commands or row.wrappers or row.estimators or row.adapters:
        return "differs" if row.differs else "works"
    return "no"


def _here(row: Row) -> str:
    parts = []
    if row.ids:
        count = len(_ids(row.ids))
        parts.append(f"{_quoted(row.ids)}, {count} {'id' if count == 1 else 'ids'}")
    if row.offline:
        _ids(row.offline)
        parts.append(f"offline: {_quoted(row.offline)}")
    for label, names, known in (
        ("", row.wrappers, wrappers.all()),
        ("estimator", row.estimators, estimators.all()),
        ("adapter", row.adapters, adapters.all()),
    ):
        _check(names, known)
        if names:
            plural = f"{label}{'s' * (len(names) > 1)} " if label else ""
            parts.append(plural + _quoted(names))
    if row.commands:
        _check([command.split()[0] for command in row.commands], commands.all())
        parts.append(_quoted([f"gem-rl {command}" for command in row.commands]))
    parts += [text for text in (row.differs, row.note) if text]
    return "; ".join(parts)


def _ids(patterns: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = list_envs(pattern) if "*" in pattern else [pattern]
        if not matching or any(id not in environments.all() for id in matching):
            raise SystemExit(f"coverage_rows.py names {pattern!r}, which is no environment")
        found |= dict.fromkeys(matching)
    return list(found)


def _check(names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := set(names) - set(known):
        raise SystemExit(f"coverage_rows.py names {sorted(unknown)[0]!r}, which does not exist")


def _check_namespaces(rows: Iterable[Row]) -> None:
    named = {id.partition(":")[0] for row in rows for id in _ids([*row.ids, *row.offline])}
    missing = {id.partition(":")[0] for id in environments.all()} - named - IN_NEITHER_PAPER
    if missing:
        raise SystemExit(f"no row of coverage_rows.py names the ids {sorted(missing)[0]}:*")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
