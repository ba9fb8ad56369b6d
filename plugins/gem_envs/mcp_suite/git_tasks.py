"""Tasks on a git repository and its files."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from gem_envs.mcp_suite.boxes import DATA
from gem_envs.mcp_suite.repository import GitState, History
from gem_envs.mcp_suite.task import Call, SuiteTask, Template
from gem_envs.terminal.task import ITEMS, PEOPLE, pick

__all__ = ["TEMPLATES"]

_REPO = f"{DATA}/repo"


def _git(tool: str, **arguments: object) -> Call:
    return f"git_{tool}", {"repo_path": _REPO, **arguments}


def _read(path: str) -> Call:
    return "read_text_file", {"path": f"{_REPO}/{path}"}


def _write(path: str, text: str) -> Call:
    return "write_file", {"path": f"{_REPO}/{path}", "content": text}


def _task(
    instruction: str,
    history: History,
    check: Callable[[GitState], bool],
    *solution: Call,
) -> SuiteTask:
    about = f"The folder {_REPO} is a git repository with the branch main checked out. "
    return SuiteTask(about + instruction, history.text(), check, solution)


def _is(
    state: GitState, files: Mapping[str, str], subjects: list[str], revision: str = "main"
) -> bool:
    """Whether a branch has exactly these files and commits, and the working tree is clean."""
    expected = {path: text.rstrip() for path, text in files.items()}
    return state.files(revision) == expected and state.subjects(revision) == subjects


def _history(rng: random.Random, commits: int = 4) -> tuple[History, list[str]]:
    """Return a history on main and the subjects of its commits, the newest first."""
    history = History()
    subjects: list[str] = []
    for word in pick(rng, commits):
        subject = f"add {word}"
        history.commit(subject, {f"{word}.txt": f"{word} by {rng.choice(PEOPLE)}\n"})
        subjects.insert(0, subject)
    return history, subjects


def commit_file(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    item, amount = rng.choice(ITEMS), rng.randint(10, 99)
    text, message = f"{item}: {amount}\n", f"add the stock of {item}"
    files = {**history.files["main"], "stock.txt": text}
    return _task(
        f"Create stock.txt with the line '{item}: {amount}' and commit it on main with the "
        f"message '{message}'.",
        history,
        lambda state: _is(state, files, [message, *subjects]) and state.clean(),
        _git("status"),
        _write("stock.txt", text),
        _git("add", files=["stock.txt"]),
        _git("commit", message=message),
    )


def new_branch(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    (name,) = pick(rng, 1)
    branch, files = f"feature-{name}", dict(history.files["main"])
    return _task(
        f"Create the branch {branch} from main and check it out.",
        history,
        lambda state: (
            state.branches() == sorted([branch, "main"])
            and state.current() == branch
            and _is(state, files, subjects, branch)
            and _is(state, files, subjects)
        ),
        _git("branch", branch_type="local"),
        _git("create_branch", branch_name=branch, base_branch="main"),
        _git("checkout", branch_name=branch),
    )


def find_author(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng, commits=6)
    subject = rng.choice(subjects)
    path = f"{subject.removeprefix('add ')}.txt"
    owner = history.files["main"][path].split(" by ")[1].strip()
    files = {**history.files["main"], "OWNER": owner + "\n"}
    return _task(
        f"Look up the commit with the message '{subject}': the file that it adds ends in a name. "
        "Write this name to the file OWNER and commit it on main with the message "
        "'name the owner'.",
        history,
        lambda state: _is(state, files, ["name the owner", *subjects]) and state.clean(),
        _git("log", max_count=10),
        _git("show", revision=f"main~{subjects.index(subject)}"),
        _write("OWNER", owner + "\n"),
        _git("add", files=["OWNER"]),
        _git("commit", message="name the owner"),
    )


def two_commits(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    first, second = rng.sample(ITEMS, 2)
    files = {**history.files["main"], f"{first}.txt": "new\n", f"{second}.txt": "new\n"}
    return _task(
        f"Create {first}.txt and {second}.txt, each with the line 'new', and commit them on main "
        f"in two commits: first {first}.txt with the message 'add {first}', then {second}.txt with "
        f"the message 'add {second}'.",
        history,
        lambda state: (
            _is(state, files, [f"add {second}", f"add {first}", *subjects])
            and f"{second}.txt" not in state.files("main~1")
            and state.clean()
        ),
        _write(f"{first}.txt", "new\n"),
        _write(f"{second}.txt", "new\n"),
        _git("status"),
        _git("add", files=[f"{first}.txt"]),
        _git("commit", message=f"add {first}"),
        _git("add", files=[f"{second}.txt"]),
        _git("commit", message=f"add {second}"),
    )


def unfinished_work(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    main = dict(history.files["main"])
    path = rng.choice(list(main))
    branch = f"draft-{rng.choice(ITEMS)}"
    history.branch(branch)
    draft = f"{main[path]}a draft\n"
    history.commit("draft", {path: draft, "extra.txt": "extra\n"}, branch)
    files = {**main, path: f"{draft}finished\n", "extra.txt": "extra\n"}
    return _task(
        f"On the branch {branch}, append the line 'finished' to {path} and commit this on that "
        "branch with the message 'finish'. Then check out main again, which must not change.",
        history,
        lambda state: (
            _is(state, files, ["finish", "draft", *subjects], branch)
            and _is(state, main, subjects)
            and state.current() == "main"
            and state.clean()
        ),
        _git("checkout", branch_name=branch),
        _read(path),
        _write(path, f"{draft}finished\n"),
        _git("add", files=[path]),
        _git("commit", message="finish"),
        _git("checkout", branch_name="main"),
    )


def undo_commit(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    main = dict(history.files["main"])
    path = rng.choice(list(main))
    history.commit("tidy up", {path: "gone\n"})
    history.commit("add the end", {"end.txt": "end\n"})
    files = {**main, "end.txt": "end\n"}
    return _task(
        "The commit 'tidy up' was a mistake. Restore what it changed, with a new commit on main "
        "that has the message 'undo tidy up'. Keep the history and the other commits.",
        history,
        lambda state: (
            _is(state, files, ["undo tidy up", "add the end", "tidy up", *subjects])
            and state.clean()
        ),
        _git("log", max_count=5),
        _git("show", revision="main~1"),
        _write(path, main[path]),
        _git("add", files=[path]),
        _git("commit", message="undo tidy up"),
    )


def take_from_branch(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    branch = f"lab-{rng.choice(ITEMS)}"
    history.branch(branch)
    (name,) = rng.sample(ITEMS, 1)
    text = f"result {rng.randint(100, 999)}\n"
    history.commit("first try", {"try.txt": "no\n"}, branch)
    history.commit("result", {f"{name}.txt": text, "noise.txt": "noise\n"}, branch)
    files = {**history.files["main"], f"{name}.txt": text}
    message = f"take {name} over"
    lab = dict(history.files[branch])
    return _task(
        f"Take the file {name}.txt, and nothing else, over from the branch {branch} to main, with "
        f"a commit on main that has the message '{message}'. Leave the branch as it is and main "
        "checked out.",
        history,
        lambda state: (
            _is(state, files, [message, *subjects])
            and state.files(branch) == {p: t.rstrip() for p, t in lab.items()}
            and state.current() == "main"
            and state.clean()
        ),
        _git("branch", branch_type="local"),
        _git("diff", target=branch),
        _git("show", revision=branch),
        _write(f"{name}.txt", text),
        _git("add", files=[f"{name}.txt"]),
        _git("commit", message=message),
    )


def release_notes(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng, commits=3)
    items = rng.sample(ITEMS, 4)
    for item in items:
        subject = f"{rng.choice(('fix', 'feat'))}: {item}"
        history.commit(subject, {f"{item}.py": f"{item} = 1\n"})
        subjects.insert(0, subject)
    fixes = sorted(s.removeprefix("fix: ") for s in subjects if s.startswith("fix: "))
    marked = sorted(s.removeprefix("feat: ") for s in subjects if s.startswith("feat: "))
    text = "# Features\n" + "".join(f"- {m}\n" for m in marked)
    text += "# Fixes\n" + "".join(f"- {f}\n" for f in fixes)
    files = {**history.files["main"], "NOTES.md": text}
    branch = "release"
    return _task(
        "Create the branch release from main. On it, add NOTES.md: the line '# Features', then a "
        "line '- NAME' for each commit with a message 'feat: NAME', then the line '# Fixes' and "
        "such a line for each 'fix: NAME'; the names are sorted alphabetically in both parts. "
        "Commit it on release with the message 'write the notes'. Do not change main.",
        history,
        lambda state: (
            _is(state, files, ["write the notes", *subjects], branch)
            and state.subjects() == subjects
            and state.clean()
        ),
        _git("log", max_count=20),
        _git("create_branch", branch_name=branch, base_branch="main"),
        _git("checkout", branch_name=branch),
        _write("NOTES.md", text),
        _git("add", files=["NOTES.md"]),
        _git("commit", message="write the notes"),
    )


def find_change(rng: random.Random) -> SuiteTask:
    history, count = History(), rng.randint(6, 9)
    bad = rng.randint(2, count - 2)
    limit, wrong = rng.randint(10, 40), rng.randint(50, 90)
    names = rng.sample(ITEMS, count)
    subjects: list[str] = []
    for n, name in enumerate(names):
        value = wrong if n >= bad else limit
        text = f"limit = {value}\nname = '{name}'\n"
        history.commit(f"use {name}", {"app.py": text, f"{name}.txt": "x\n"})
        subjects.insert(0, f"use {name}")
    fixed = f"limit = {limit}\nname = '{names[-1]}'\n"
    files = {**history.files["main"], "app.py": fixed, "CULPRIT": f"use {names[bad]}\n"}
    return _task(
        f"One commit changed limit in app.py from {limit} to {wrong}. Set it back to {limit} and "
        "write the message of that commit to the file CULPRIT. Commit both together on main with "
        "the message 'restore the limit'.",
        history,
        lambda state: _is(state, files, ["restore the limit", *subjects]) and state.clean(),
        _git("log", max_count=20),
        *(_git("show", revision=f"main~{count - 1 - n}") for n in range(bad, bad - 2, -1)),
        _write("app.py", fixed),
        _write("CULPRIT", f"use {names[bad]}\n"),
        _git("add", files=["app.py", "CULPRIT"]),
        _git("diff_staged"),
        _git("commit", message="restore the limit"),
    )


def port_branches(rng: random.Random) -> SuiteTask:
    history, subjects = _history(rng)
    main = dict(history.files["main"])
    first, second = (f"team-{item}" for item in rng.sample(ITEMS, 2))
    path = rng.choice(list(main))
    for branch in (first, second):
        history.branch(branch)
        history.commit(f"work of {branch}", {f"{branch}.txt": "work\n"}, branch)
    line = f"licence {rng.randint(100, 999)}\n"
    text = main[path] + line

    def check(state: GitState) -> bool:
        def done(branch: str) -> bool:
            files = {**main, f"{branch}.txt": "work\n", path: text}
            return _is(state, files, ["add the licence", f"work of {branch}", *subjects], branch)

        return (
            done(first)
            and done(second)
            and _is(state, main, subjects)
            and state.current() == "main"
            and state.clean()
        )

    calls: list[Call] = [_git("branch", branch_type="local"), _read(path)]
    for branch in (first, second):
        calls += [_git("checkout", branch_name=branch), _write(path, text)]
        calls += [_git("add", files=[path]), _git("commit", message="add the licence")]
    return _task(
        f"On each of the branches {first} and {second}, append the line '{line.strip()}' to {path} "
        "and commit this with the message 'add the licence'. In the end, main must be checked out "
        "and unchanged.",
        history,
        check,
        *calls,
        _git("checkout", branch_name="main"),
    )


TEMPLATES = {
    "CommitFile": Template("easy", commit_file),
    "NewBranch": Template("easy", new_branch),
    "FindAuthor": Template("easy", find_author),
    "TwoCommits": Template("medium", two_commits),
    "UnfinishedWork": Template("medium", unfinished_work),
    "UndoCommit": Template("medium", undo_commit),
    "TakeFromBranch": Template("medium", take_from_branch),
    "ReleaseNotes": Template("hard", release_notes),
    "FindChange": Template("hard", find_change),
    "PortBranches": Template("hard", port_branches),
}
