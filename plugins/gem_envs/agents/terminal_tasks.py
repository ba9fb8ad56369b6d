"""Generators of the terminal tasks: initial files, an instruction, and tests of the result.

A test is (kind, path or command, expected); `gem_tools.sandbox.shell_program.holds` defines the
kinds. `solution` is a command that passes all tests; gem's own tests run it for every kind.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "TerminalTask", "draw_task"]

_PEOPLE = (
    "alice",
    "bob",
    "carla",
    "dmitri",
    "esther",
    "farid",
    "greta",
    "hugo",
    "ines",
    "jonas",
    "kira",
    "liam",
    "mona",
    "nils",
)
_WORDS = (
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "iris",
    "juniper",
    "kelp",
    "lotus",
    "maple",
)
_ITEMS = (
    "bolts",
    "cables",
    "drills",
    "filters",
    "gaskets",
    "hinges",
    "lamps",
    "motors",
    "nails",
    "pumps",
    "screws",
    "valves",
)


@dataclass(frozen=True, slots=True)
class TerminalTask:
    """A shell task."""

    kind: str
    instruction: str
    files: tuple[tuple[str, str, int], ...]
    tests: tuple[tuple[str, str, Any], ...]
    solution: str
    setup: str = ""


def draw_task(kind: str, rng: random.Random) -> TerminalTask:
    """Draw a task of a kind; the random generator determines it completely."""
    return KINDS[kind](rng)


def count_errors(rng: random.Random) -> TerminalTask:
    """Count lines in several files."""
    level = rng.choice(("ERROR", "WARNING"))
    files, count = [], 0
    for service in rng.sample(_WORDS, 4):
        lines = []
        for hour in range(rng.randint(15, 30)):
            drawn = rng.choice(("INFO", "INFO", "ERROR", "WARNING"))
            # One message contains the level as a word, which must not be counted.
            message = rng.choice(
                ("request served", f"no {level} seen", "cache flushed", "user logged in")
            )
            lines.append(f"2031-05-{rng.randint(1, 28):02} {hour % 24:02}:00 {drawn} {message}")
            count += drawn == level
        files.append(_file(f"logs/{service}.log", lines))
    return TerminalTask(
        "CountErrors",
        "The files in ~/logs have a date, a time, a level and a message on each line. "
        f"Count the lines of the level {level} in all of them together "
        "and write the number, and nothing else, to ~/count.txt.",
        tuple(files),
        (("text", "count.txt", str(count)),),
        f"cat logs/*.log | awk '$3 == \"{level}\"' | wc -l > count.txt",
    )


def sum_column(rng: random.Random) -> TerminalTask:
    """Sum products over the rows of a table."""
    rows = [
        (item, rng.randint(1, 60), rng.randint(1, 90), rng.choice(("north", "south")))
        for item in rng.choices(_ITEMS, k=25)
    ]
    chosen = rng.choice(("north", "south"))
    total = sum(amount * price for _, amount, price, region in rows if region == chosen)
    return TerminalTask(
        "SumColumn",
        "~/orders.csv has a header and the columns item, amount, price and region. "
        "Write the sum of amount times price "
        f"over the orders of the region {chosen} to ~/total.txt.",
        (_table("orders.csv", ("item", "amount", "price", "region"), rows),),
        (("text", "total.txt", str(total)),),
        f"awk -F, '$4 == \"{chosen}\" {{s += $2 * $3}} END {{print s}}' orders.csv > total.txt",
    )


def rename(rng: random.Random) -> TerminalTask:
    """Rename the files of a pattern in nested folders, and no others."""
    old, new = rng.choice((("txt", "md"), ("jpeg", "jpg"), ("htm", "html")))
    names = [
        f"{folder}{word}.{rng.choice((old, old, 'log'))}"
        for folder in ("", "sub/", "sub/deep/")
        for word in _pick(rng, 4)
    ]
    renamed = [name[: -len(old)] + new if name.endswith(f".{old}") else name for name in names]
    return TerminalTask(
        "Rename",
        f"Rename every file below ~/docs that ends in .{old} so that it ends in .{new} instead. "
        "Leave all other files alone.",
        tuple(_file(f"docs/{name}", [f"this is {name}"]) for name in names),
        (
            ("names", "docs", renamed),
            *(("text", f"docs/{b}", f"this is {a}") for a, b in zip(names, renamed, strict=True)),
        ),
        f'find docs -name "*.{old}" | while read f; do mv "$f" "${{f%.{old}}}.{new}"; done',
    )


def clean_up(rng: random.Random) -> TerminalTask:
    """Delete files by name and size; deleting any other file fails the task."""
    size = rng.choice((500, 1000, 2000))
    remaining: list[str] = []
    files: list[tuple[str, str, int]] = []
    for folder in ("", "a/", "a/b/"):
        for word in _pick(rng, 4):
            suffix = rng.choice(("tmp", "tmp", "dat"))
            length = rng.choice((size // 2, size - 1, size + 1, 2 * size))
            if not files:  # at least one file must be deleted
                suffix, length = "tmp", 2 * size
            files.append((f"work/{folder}{word}.{suffix}", "x" * length, 0o644))
            if suffix != "tmp" or length < size:
                remaining.append(f"{folder}{word}.{suffix}")
    return TerminalTask(
        "CleanUp",
        "Delete every file below ~/work whose name ends in .tmp "
        f"and that is larger than {size} bytes. Delete nothing else.",
        tuple(files),
        (("names", "work", remaining),),
        f"find work -name '*.tmp' -size +{size}c -delete",
    )


def unique_addresses(rng: random.Random) -> TerminalTask:
    """Sort and remove duplicates, ignoring case."""
    addresses = [
        f"{person}@{word}.example"
        for person, word in zip(_PEOPLE, rng.choices(_WORDS, k=len(_PEOPLE)), strict=True)
    ]
    lines = [rng.choice((a, a.upper(), a.title())) for a in rng.choices(addresses, k=40)]
    unique = sorted({line.lower() for line in lines})
    return TerminalTask(
        "UniqueAddresses",
        "~/subscribers.txt has one mail address on each line, "
        "many of them several times and in different upper and lower case. "
        "Write every address once, in lower case and sorted, to ~/unique.txt.",
        (_file("subscribers.txt", lines),),
        (("text", "unique.txt", "\n".join(unique)),),
        "tr A-Z a-z < subscribers.txt | LC_ALL=C sort -u > unique.txt",
    )


def edit_config(rng: random.Random) -> TerminalTask:
    """Change one setting in one section; other sections have the same setting."""
    sections = rng.sample(_WORDS, 4)
    chosen, key = rng.choice(sections), rng.choice(("port", "workers", "timeout"))
    value = rng.randint(10_000, 60_000)  # larger than every existing value
    before: list[str] = []
    after: list[str] = []
    for section in sections:
        settings = {
            "port": rng.randint(1000, 9999),
            "workers": rng.randint(1, 64),
            "timeout": rng.randint(5, 300),
        }
        for lines, edited in ((before, False), (after, True)):
            lines += [f"[{section}]", f"# of the {section} server"]
            lines += [
                f"{k} = {value if edited and section == chosen and k == key else v}"
                for k, v in settings.items()
            ]
            lines.append("")
    return TerminalTask(
        "EditConfig",
        f"In ~/app.ini, set {key} in the section [{chosen}] to {value}. "
        "Change nothing else in the file, not even a comment.",
        (_file("app.ini", before),),
        (("bytes", "app.ini", _text(after)),),
        f"sed -i '/^\\[{chosen}\\]/,/^\\[/ s/^{key} = .*/{key} = {value}/' app.ini",
    )


def fix_script(rng: random.Random) -> TerminalTask:
    """Fix a program with one bug."""
    numbers = [rng.randint(2, 99) for _ in range(7)]
    wrong, right, result_name, result = rng.choice(
        (
            ("range(1, len(values))", "range(len(values))", "the sum", sum(numbers)),
            ("total = values[0]", "total = 0", "the sum", sum(numbers)),
            ("total -= values[i]", "total += values[i]", "the sum", sum(numbers)),
        )
    )
    lines = ["import sys", "", "values = [int(line) for line in open(sys.argv[1])]", "total = 0"]
    lines += ["for i in range(len(values)):", "    total += values[i]", "print(total)"]
    broken = [line.replace(right, wrong) for line in lines]
    other = [rng.randint(2, 99) for _ in range(4)]
    return TerminalTask(
        "FixScript",
        f"~/add.py should print {result_name} of the numbers in the file it is given, "
        "one on each line, but it prints something else. "
        "Mend it: `python3 add.py numbers.txt` must print the right number, "
        "and so it must for any other file.",
        (_file("add.py", broken), _file("numbers.txt", numbers), _file("other.txt", other)),
        (
            ("prints", "python3 add.py numbers.txt", str(result)),
            ("prints", "python3 add.py other.txt", str(sum(other))),
            ("prints", "printf '5\\n6\\n' > seen.txt && python3 add.py seen.txt", "11"),
            ("text", "numbers.txt", _text(numbers)),
        ),
        f"sed -i 's/{_sed(wrong)}/{right}/' add.py",
    )


def sort_photos(rng: random.Random) -> TerminalTask:
    """Move files into folders derived from their names."""
    names = [
        f"{rng.randint(2019, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}_{word}.jpg"
        for word in (*_WORDS, *_PEOPLE[:3])
    ]
    moved = [f"{name[:4]}/{name[5:7]}/{name}" for name in names]
    return TerminalTask(
        "SortPhotos",
        "The photos in ~/photos are called YEAR-MONTH-DAY_name.jpg. "
        "Move each into a folder of its year and month below ~/photos, "
        "so that 2024-05-17_lake.jpg becomes ~/photos/2024/05/2024-05-17_lake.jpg.",
        tuple(_file(f"photos/{name}", [name]) for name in names),
        (
            ("names", "photos", moved),
            *(("text", f"photos/{m}", n) for m, n in zip(moved, names, strict=True)),
        ),
        'cd photos && for f in *.jpg; do d="${f:0:4}/${f:5:2}"; mkdir -p "$d"; mv "$f" "$d/"; done',
    )


def permissions(rng: random.Random) -> TerminalTask:
    """Set file modes according to the files' contents."""
    scripts = rng.sample(_WORDS, 8)
    files, tests = [], []
    for name in scripts:
        program = rng.random() < 0.5
        files.append(
            _file(f"bin/{name}", ["#!/bin/sh" if program else "# only notes", f"echo {name}"])
        )
        tests.append(("mode", f"bin/{name}", 0o755 if program else 0o644))
    key = rng.choice(_PEOPLE)
    files.append(_file(f"keys/{key}.pem", ["secret"]))
    return TerminalTask(
        "Permissions",
        "In ~/bin, every file whose first line is #!/bin/sh shall be executable for all "
        "(mode 755), the others shall stay as they are. "
        f"The file ~/keys/{key}.pem shall be readable and writable for its owner only (mode 600).",
        tuple(files),
        (*tests, ("mode", f"keys/{key}.pem", 0o600)),
        "for f in bin/*; do head -1 $f | grep -qx '#!/bin/sh' && chmod 755 $f; done; "
        f"chmod 600 keys/{key}.pem",
    )


def newest_release(rng: random.Random) -> TerminalTask:
    """Find the highest version number and link to it; versions do not sort alphabetically."""
    versions = {(rng.randint(0, 3), rng.randint(0, 20), rng.randint(0, 20)) for _ in range(7)} | {
        (2, 9, 1),
        (2, 10, 0),
    }
    shown = [".".join(map(str, version)) for version in sorted(versions)]
    oldest, newest = shown[0], shown[-1]
    rng.shuffle(shown)
    return TerminalTask(
        "NewestRelease",
        "Each folder in ~/releases is a version, MAJOR.MINOR.PATCH. "
        "Make the symbolic link ~/current point to the folder of the highest version; "
        "it points to another one now. Write that version to ~/VERSION.",
        tuple(_file(f"releases/{version}/notes.txt", [f"release {version}"]) for version in shown),
        (("link", "current", f"releases/{newest}"), ("text", "VERSION", newest)),
        "v=$(ls releases | sort -V | tail -1); ln -sfn releases/$v current; echo $v > VERSION",
        f"ln -s releases/{oldest} current",
    )


def find_in_archive(rng: random.Random) -> TerminalTask:
    """Find the archived file that contains a line."""
    token = f"{rng.choice(_WORDS)}-{rng.randint(100, 999)}"
    paths = [f"{folder}/{word}.txt" for folder in _pick(rng, 3) for word in _pick(rng, 4)]
    hit = rng.choice(paths)
    files = [
        _file(f"pack/{p}", [*rng.choices(_WORDS, k=6), token if p == hit else f"{token}x", "end"])
        for p in paths
    ]
    return TerminalTask(
        "FindInArchive",
        f"One of the files in ~/backup.tar.gz has a line that is exactly '{token}'. "
        "Write the path of that file, as it stands in the archive, to ~/found.txt, "
        "and copy the file itself to ~/found.copy.",
        tuple(files),
        (
            ("text", "found.txt", hit),
            ("text", "found.copy", next(text for path, text, _ in files if path == f"pack/{hit}")),
        ),
        "mkdir out && tar xzf backup.tar.gz -C out && cd out && "
        f"f=$(grep -rlx -- {token} * | head -1) && echo $f > ../found.txt "
        "&& cp $f ../found.copy && cd .. && rm -r out",
        "cd pack && tar czf ../backup.tar.gz * && cd .. && rm -r pack",
    )


def json_report(rng: random.Random) -> TerminalTask:
    """Convert JSON to a table."""
    people = rng.sample(_PEOPLE, 9)
    records = [
        {"name": p, "team": rng.choice(("red", "blue")), "score": rng.randint(0, 100)}
        for p in people
    ]
    team = rng.choice(("red", "blue"))
    best = sorted(
        (r for r in records if r["team"] == team),
        key=lambda r: (-int(str(r["score"])), str(r["name"])),
    )
    expected = "\n".join(f"{r['name']},{r['score']}" for r in best)
    return TerminalTask(
        "JsonReport",
        "~/scores.json is a list of objects with name, team and score. "
        f"Write a line name,score to ~/report.csv for each member of the team {team}, "
        "the highest score first and equal ones by name, without a header.",
        (("scores.json", json.dumps(records, indent=1), 0o644),),
        (("text", "report.csv", expected),),
        'python3 -c "import json; '
        f"rows = [r for r in json.load(open('scores.json')) if r['team'] == '{team}']; "
        "print(*(r['name'] + ',' + str(r['score']) "
        "for r in sorted(rows, key=lambda r: (-r['score'], r['name']))), sep='\\n')\" > report.csv",
    )


KINDS: dict[str, Callable[[random.Random], TerminalTask]] = {
    "CountErrors": count_errors,
    "SumColumn": sum_column,
    "Rename": rename,
    "CleanUp": clean_up,
    "UniqueAddresses": unique_addresses,
    "EditConfig": edit_config,
    "FixScript": fix_script,
    "SortPhotos": sort_photos,
    "Permissions": permissions,
    "NewestRelease": newest_release,
    "FindInArchive": find_in_archive,
    "JsonReport": json_report,
}


def _text(lines: list[Any]) -> str:
    return "\n".join(map(str, lines)) + "\n"


def _file(path: str, lines: list[Any]) -> tuple[str, str, int]:
    return path, _text(lines), 0o644


def _table(path: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> tuple[str, str, int]:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return path, text.getvalue(), 0o644


def _pick(rng: random.Random, count: int) -> list[str]:
    return rng.sample(_WORDS, count)


def _sed(text: str) -> str:
    return text.replace("[", "\\[").replace("]", "\\]")
