"""Tasks on a folder of files."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence

from gem_envs.mcp_suite.boxes import DATA
from gem_envs.mcp_suite.task import Call, SuiteTask, Template
from gem_envs.terminal.task import ITEMS, PEOPLE, WORDS, pick

__all__ = ["TEMPLATES"]


def _task(
    instruction: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    solution: Sequence[Call],
) -> SuiteTask:
    expected = {path: text.rstrip() for path, text in after.items()}
    return SuiteTask(
        f"The folder {DATA} holds files. {instruction} Leave all other files as they are.",
        dict(before),
        lambda files: bool(files == expected),
        tuple(solution),
    )


def _tree(path: str = DATA) -> Call:
    return "directory_tree", {"path": path}


def _read(path: str) -> Call:
    return "read_text_file", {"path": f"{DATA}/{path}"}


def _read_all(paths: Sequence[str]) -> Call:
    return "read_multiple_files", {"paths": [f"{DATA}/{path}" for path in paths]}


def _write(path: str, text: str) -> Call:
    return "write_file", {"path": f"{DATA}/{path}", "content": text}


def _move(source: str, destination: str) -> Call:
    return "move_file", {"source": f"{DATA}/{source}", "destination": f"{DATA}/{destination}"}


def _folder(path: str) -> Call:
    return "create_directory", {"path": f"{DATA}/{path}"}


def _edit(path: str, old: str, new: str) -> Call:
    return "edit_file", {"path": f"{DATA}/{path}", "old_text": old, "new_text": new}


def _notes(rng: random.Random, count: int) -> dict[str, str]:
    return {
        f"notes/{word}.txt": f"{word} by {rng.choice(PEOPLE)}\nstatus: {rng.choice('ABC')}\n"
        for word in pick(rng, count)
    }


def change_setting(rng: random.Random) -> SuiteTask:
    keys = pick(rng, 5)
    values = {key: rng.randint(10, 99) for key in keys}
    key, value = rng.choice(keys), rng.randint(100, 999)
    text = "".join(f"{k} = {v}\n" for k, v in values.items())
    changed = text.replace(f"{key} = {values[key]}", f"{key} = {value}")
    return _task(
        f"In config/app.ini, set {key} to {value}.",
        {"config/app.ini": text, "config/old.ini": text},
        {"config/app.ini": changed, "config/old.ini": text},
        [
            ("list_directory", {"path": f"{DATA}/config"}),
            _read("config/app.ini"),
            _edit("config/app.ini", f"{key} = {values[key]}", f"{key} = {value}"),
        ],
    )


def index_file(rng: random.Random) -> SuiteTask:
    notes = _notes(rng, 5)
    index = "\n".join(sorted(path.removeprefix("notes/") for path in notes))
    return _task(
        "Write notes/INDEX with the names of all files in the folder notes, one per line, sorted "
        "alphabetically, without INDEX itself.",
        notes,
        {**notes, "notes/INDEX": index},
        [
            ("list_allowed_directories", {}),
            ("list_directory", {"path": f"{DATA}/notes"}),
            _write("notes/INDEX", index + "\n"),
        ],
    )


def rename_files(rng: random.Random) -> SuiteTask:
    notes = _notes(rng, 4)
    other = {f"notes/{rng.choice(ITEMS)}.md": "other\n"}
    renamed = {path.replace(".txt", ".old"): text for path, text in notes.items()}
    return _task(
        "Rename every file in notes that ends in .txt: it should end in .old instead.",
        {**notes, **other},
        {**renamed, **other},
        [
            ("search_files", {"path": DATA, "pattern": "*.txt"}),
            *(_move(path, path.replace(".txt", ".old")) for path in notes),
        ],
    )


def collect_status(rng: random.Random) -> SuiteTask:
    notes = _notes(rng, 5)
    wanted = rng.choice(list(notes.values())).split("status: ")[1].strip()
    names = [p.removeprefix("notes/") for p, text in notes.items() if f"status: {wanted}" in text]
    result = "\n".join(sorted(names))
    return _task(
        f"Write the names of the files in notes that have the line 'status: {wanted}' to "
        "result.txt, one per line, sorted alphabetically.",
        notes,
        {**notes, "result.txt": result},
        [_tree(), _read_all(list(notes)), _write("result.txt", result + "\n")],
    )


def sort_by_owner(rng: random.Random) -> SuiteTask:
    notes = _notes(rng, 5)
    owners = {path: text.split(" by ")[1].split("\n")[0] for path, text in notes.items()}
    moved = {f"people/{owners[p]}/{p.removeprefix('notes/')}": text for p, text in notes.items()}
    return _task(
        "The first line of each file in notes ends in the name of its owner. Move each file to "
        "people/OWNER/, under its name.",
        notes,
        moved,
        [
            _tree(),
            _read_all(list(notes)),
            *(_folder(f"people/{owner}") for owner in sorted(set(owners.values()))),
            *(_move(p, f"people/{owners[p]}/{p.removeprefix('notes/')}") for p in notes),
        ],
    )


def merge_csv(rng: random.Random) -> SuiteTask:
    tables = {
        f"sales/{city}.csv": "item,amount\n"
        + "".join(f"{item},{rng.randint(1, 60)}\n" for item in rng.sample(ITEMS, 4))
        for city in ("bergen", "cadiz", "espoo")
    }
    totals: dict[str, int] = {}
    for text in tables.values():
        for line in text.splitlines()[1:]:
            item, amount = line.split(",")
            totals[item] = totals.get(item, 0) + int(amount)
    result = "item,amount\n" + "".join(f"{i},{totals[i]}\n" for i in sorted(totals))
    return _task(
        "Each file in sales has the columns item and amount. Write total.csv with the same "
        "header: one row per item with the sum of its amounts, sorted by item.",
        tables,
        {**tables, "total.csv": result},
        [_tree(), _read_all(list(tables)), _write("total.csv", result)],
    )


def update_json(rng: random.Random) -> SuiteTask:
    people = [
        {"name": name, "team": rng.choice(("red", "blue")), "active": True}
        for name in rng.sample(PEOPLE, 6)
    ]
    leaving = rng.choice(people)["name"]
    target = rng.choice(("red", "blue"))
    after = [
        {**person, "active": False} if person["name"] == leaving else person for person in people
    ]
    before = {"people.json": json.dumps(people, indent=1), "teams.txt": ""}
    names = sorted(str(p["name"]) for p in after if p["team"] == target and p["active"])
    expected = json.dumps(after, sort_keys=True)

    def check(files: Mapping[str, str]) -> bool:
        try:
            value = json.dumps(json.loads(files.get("people.json", "")), sort_keys=True)
        except (ValueError, RecursionError):  # a file may be nested a million times
            return False
        teams = files.get("teams.txt", "").split()
        # as text, because in Python 1 == True
        return set(files) == set(before) and value == expected and teams == names

    return SuiteTask(
        f"The folder {DATA} holds files. In people.json, set active to false for {leaving} and "
        f"change nothing else. Then write the names of the active members of the team {target} to "
        "teams.txt, one per line, sorted alphabetically.",
        before,
        check,
        (
            _tree(),
            _read("people.json"),
            _write("people.json", json.dumps(after, indent=1)),
            _write("teams.txt", "\n".join(names) + "\n"),
        ),
    )


def rename_symbol(rng: random.Random) -> SuiteTask:
    old, new = pick(rng, 2)
    files = {
        f"src/{item}.py": f"from core import {old}\n\nprint({old}({n}), 'not_{old}')\n"
        for n, item in enumerate(rng.sample(ITEMS, 3))
    }
    files["src/core.py"] = f"def {old}(n):\n    return n + 1\n"
    files["src/readme.md"] = f"call {old} to count\n"
    after = {
        path: text
        if path.endswith(".md")
        else text.replace(f"import {old}", f"import {new}")
        .replace(f"({old}(", f"({new}(")
        .replace(f"def {old}", f"def {new}")
        for path, text in files.items()
    }
    changed = [path for path in files if after[path] != files[path]]
    return _task(
        f"In the Python files of src, rename the function {old} to {new}: its definition, imports "
        "and calls. Leave strings and the readme as they are.",
        files,
        after,
        [_tree(), _read_all(changed), *(_write(path, after[path]) for path in changed)],
    )


def follow_links(rng: random.Random) -> SuiteTask:
    names = rng.sample(WORDS, 6)
    code = f"{rng.choice(ITEMS)}-{rng.randint(1000, 9999)}"
    files = {f"maze/{a}.txt": f"go on with {b}.txt\n" for a, b in itertools.pairwise(names)}
    files[f"maze/{names[-1]}.txt"] = f"the code is {code}\n"
    files |= {f"maze/{word}.txt": "a dead end\n" for word in WORDS if word not in names}
    return _task(
        f"Start with maze/{names[0]}.txt. Each file there names the next one, the last one has a "
        "code. Write the code alone to code.txt, and the names of the files on the way, in order "
        "and one per line, to way.txt.",
        files,
        {**files, "code.txt": code, "way.txt": "\n".join(f"{name}.txt" for name in names)},
        [
            *(_read(f"maze/{name}.txt") for name in names),
            _write("code.txt", code + "\n"),
            _write("way.txt", "".join(f"{name}.txt\n" for name in names)),
        ],
    )


def apply_changes(rng: random.Random) -> SuiteTask:
    notes = _notes(rng, 6)
    paths = list(notes)
    appended, edited, moved = rng.sample(paths, 3)
    line, target = f"checked by {rng.choice(PEOPLE)}", f"archive/{rng.choice(ITEMS)}.txt"
    status = notes[edited].split("status: ")[1].strip()
    todo = (
        f"1. append the line '{line}' to {appended}\n"
        f"2. change the status in {edited} to Z\n"
        f"3. move {moved} to {target}\n"
        "4. write the word done to this file, and nothing else\n"
    )
    after = {**notes, "todo.txt": "done"}
    after[appended] = f"{notes[appended]}{line}"
    after[edited] = notes[edited].replace(f"status: {status}", "status: Z")
    after[target] = after.pop(moved)
    return _task(
        "Do what todo.txt asks for.",
        {**notes, "todo.txt": todo},
        after,
        [
            _read("todo.txt"),
            _read_all([appended, edited]),
            _write(appended, f"{notes[appended]}{line}\n"),
            _edit(edited, f"status: {status}", "status: Z"),
            _folder("archive"),
            _move(moved, target),
            _write("todo.txt", "done\n"),
        ],
    )


TEMPLATES = {
    "ChangeSetting": Template("easy", change_setting),
    "IndexFile": Template("easy", index_file),
    "CollectStatus": Template("easy", collect_status),
    "RenameFiles": Template("medium", rename_files),
    "MergeCsv": Template("medium", merge_csv),
    "UpdateJson": Template("medium", update_json),
    "RenameSymbol": Template("medium", rename_symbol),
    "SortByOwner": Template("hard", sort_by_owner),
    "FollowLinks": Template("hard", follow_links),
    "ApplyChanges": Template("hard", apply_changes),
}
