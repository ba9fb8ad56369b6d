"""Repository tasks: git histories to change, merge and search."""

from __future__ import annotations

import random

from gem_envs.terminal.task import ITEMS, PEOPLE, WORDS, TerminalTask, Test, pick, text_of

__all__ = ["KINDS"]

_INIT = (
    "export GIT_AUTHOR_DATE='2031-05-04T10:00:00Z' GIT_COMMITTER_DATE='2031-05-04T10:00:00Z'\n"
    "git config --global user.name Tester; git config --global user.email tester@example.com\n"
    "git config --global advice.detachedHead false\n"
    "git init -q -b main repo; cd repo\n"
)
_END = "unset GIT_AUTHOR_DATE GIT_COMMITTER_DATE\n"
# The tests read the commits, branches and index through a git directory of their own. What the
# model configured in its own does not count: hooks, filters, fsmonitor, grafts, info/exclude.
_OWN_GIT = (
    "cd ~/repo && export GIT_DIR=$(mktemp -d) && git init -q --bare $GIT_DIR && "
    "cp -r .git/HEAD .git/refs $GIT_DIR && "
    "for f in index packed-refs; do [ ! -f .git/$f ] || cp .git/$f $GIT_DIR; done && "
    "export GIT_OBJECT_DIRECTORY=$PWD/.git/objects GIT_WORK_TREE=$PWD && "
)
_CHANGES = "git diff --cached --name-only && git read-tree HEAD && git status --porcelain -uall"
"""Prints what is not committed; a fresh index has no entries that git was told to ignore."""


def _write(path: str, lines: list[str]) -> str:
    return f"cat > {path} <<'EOF'\n{text_of(lines)}EOF\n"


def _commit(message: str) -> str:
    return f"git add -A; git commit -qm '{message}'\n"


def _prints(command: str, expected: str) -> Test:
    """Return a test of what a git command prints in the repository."""
    return "prints", _OWN_GIT + command, expected


def untrack(rng: random.Random) -> TerminalTask:
    """Remove files from the index, not from the folder."""
    generated = [f"build/{word}.o" for word in pick(rng, 4)]
    sources = [f"src/{item}.c" for item in rng.sample(ITEMS, 3)]
    setup = _INIT + "mkdir -p build src\n"
    setup += "".join(f"echo {path} > {path}\n" for path in (*generated, *sources))
    setup += _commit("start") + _END
    return TerminalTask(
        "The repository ~/repo tracks the generated files in build/ by mistake. Stop tracking "
        "them and make git ignore the folder build/ with a .gitignore file, in one new commit on "
        "main. The files in build/ must stay in the folder.",
        (),
        (
            _prints("git ls-files", text_of(sorted([".gitignore", *sources]))),
            _prints(f"{_CHANGES} && git rev-list --count main", "2"),
            _prints("git check-ignore build/new.o", "build/new.o"),
            ("prints", "cd repo && ls build/*", text_of(sorted(generated))),
        ),
        (
            "cd repo; git rm -rq --cached build; echo build/ > .gitignore; "
            "git add -A; git commit -qm 'ignore build'; git status",
        ),
        setup,
    )


def revert(rng: random.Random) -> TerminalTask:
    """Revert a commit in the middle of the history."""
    words = pick(rng, 6)
    bad = rng.randint(1, 4)
    setup = _INIT
    for number, word in enumerate(words):
        setup += _write(f"{word}.txt", [f"{word} {n}" for n in range(3)])
        if number == bad:
            setup += _write("settings.ini", ["[main]", "debug = on"])
        elif number == 0:
            setup += _write("settings.ini", ["[main]", "debug = off"])
        setup += _commit(f"add {word}")
    remaining = sorted(
        [*(f"{word}.txt" for n, word in enumerate(words) if n != bad), "settings.ini"]
    )
    subjects = "".join(f"add {word}\n" for word in reversed(words))
    return TerminalTask(
        f"In ~/repo, the commit with the message 'add {words[bad]}' was a mistake. Undo what it "
        "changed with one new commit on main. Keep the history and all other changes.",
        (),
        (
            _prints("git ls-tree --name-only main", text_of(remaining)),
            _prints("git show main:settings.ini", "[main]\ndebug = off"),
            _prints("git log --format=%s main~1", subjects),
            _prints(_CHANGES, ""),
        ),
        (
            "cd repo; git log --oneline",
            f"git revert --no-edit $(git log --format=%h --grep='^add {words[bad]}$')",
        ),
        setup + _END,
    )


def resolve(rng: random.Random) -> TerminalTask:
    """Merge two branches that changed the same line."""
    item, left, right = rng.choice(ITEMS), *rng.sample(range(100, 999), 2)
    branch = rng.choice(WORDS)
    total = left + right
    setup = _INIT + _write("stock.txt", ["bricks 10", f"{item} 1", "tiles 20"])
    setup += _commit("start") + f"git checkout -q -b {branch}\n"
    setup += _write("stock.txt", ["bricks 10", f"{item} {left}", "tiles 20", "glass 5"])
    setup += _commit("from the branch") + "git checkout -q main\n"
    setup += _write("stock.txt", ["sand 7", "bricks 10", f"{item} {right}", "tiles 20"])
    setup += _commit("on main") + _END
    merged = ["sand 7", "bricks 10", f"{item} {total}", "tiles 20", "glass 5"]
    script = _write("stock.txt", merged)
    return TerminalTask(
        f"In ~/repo, merge the branch {branch} into main with a merge commit. Both changed the "
        f"number of {item} in stock.txt: the right number is the sum of both. Keep all other "
        "changes of both branches.",
        (),
        (
            _prints("git show main:stock.txt", text_of(merged)),
            _prints("git log -1 --format=%P main | wc -w", "2"),
            _prints(f"git merge-base --is-ancestor {branch} main && echo yes", "yes"),
            _prints("git log --format=%s main^1", "on main\nstart"),
            _prints("git log --format=%s main^2", "from the branch\nstart"),
            _prints(_CHANGES, ""),
        ),
        (
            f"cd repo; git checkout -q main; git merge {branch}; cat stock.txt",
            f"{script}git add stock.txt; git commit -qm merge; git log --graph --oneline",
        ),
        setup,
    )


def recover(rng: random.Random) -> TerminalTask:
    """Find a deleted branch's commit in the reflog."""
    branch, other = pick(rng, 2)
    secret = f"{rng.choice(PEOPLE)}-{rng.randint(1000, 9999)}"
    setup = _INIT + _write("readme.txt", ["start"]) + _commit("start")
    setup += f"git checkout -q -b {other}\n" + _write("draft.txt", [f"{secret}-old"])
    setup += _commit("first draft") + f"git checkout -q main; git branch -qD {other}\n"
    setup += f"git checkout -q -b {branch}\n" + _write("plan.txt", ["one", secret])
    setup += _commit("the plan") + _write("plan.txt", ["one", secret, "three"])
    setup += _commit("extend the plan") + f"git checkout -q main; git branch -qD {branch}\n"
    return TerminalTask(
        f"Someone deleted the branch {branch} of ~/repo, which had the commit 'extend the plan'. "
        f"Recover the branch under its name, with all its commits. Leave main as it is.",
        (),
        (
            _prints(f"git show {branch}:plan.txt", f"one\n{secret}\nthree"),
            _prints(
                f"git log --format='%s %an %ai' {branch}",
                "".join(
                    f"{subject} Tester 2031-05-04 10:00:00 +0000\n"
                    for subject in ("extend the plan", "the plan", "start")
                ),
            ),
            _prints("git log --format=%s main", "start"),
        ),
        (
            "cd repo; git reflog",
            f"git branch {branch} $(git reflog --format='%h %gs' | grep ': extend the plan' "
            "| head -1 | cut -d' ' -f1); git log " + branch,
        ),
        setup + _END,
    )


def bisect(rng: random.Random) -> TerminalTask:
    """Find the first commit after which a program fails."""
    count = rng.randint(14, 20)
    bad = rng.randint(4, count - 3)
    names = [f"change {rng.choice(WORDS)} {n}" for n in range(count)]
    setup = _INIT
    for number, name in enumerate(names):
        sign = "-" if number >= bad else "+"
        program = ["import sys", "a, b = map(int, sys.argv[1:])"]
        program += [f"c = {number}", f"print(a {sign} b if a > b else a + b)"]
        setup += _write("add.py", program) + _commit(name)
    return TerminalTask(
        "In ~/repo, `python3 add.py 5 3` should print 8, but it does not any more; in the first "
        "commit it did. Find the commit that broke it and write its message to ~/culprit.txt. "
        "Leave the branch main checked out as it is.",
        (),
        (
            ("text", "culprit.txt", names[bad]),
            _prints("git symbolic-ref --short HEAD", "main"),
            _prints("git rev-list --count main", str(count)),
        ),
        (
            "cd repo; git bisect start main $(git rev-list main | tail -1)",
            "git bisect run sh -c 'test \"$(python3 add.py 5 3)\" = 8' > /dev/null; "
            "git log -1 --format=%s refs/bisect/bad > ~/culprit.txt; git bisect reset",
            "cat ~/culprit.txt; git status",
        ),
        setup + _END,
    )


KINDS = {
    "GitUntrack": untrack,
    "GitRevert": revert,
    "GitResolve": resolve,
    "GitRecover": recover,
    "GitBisect": bisect,
}
