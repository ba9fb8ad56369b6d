"""File tasks: names, modes, links and archives."""

from __future__ import annotations

import hashlib
import random

from gem_envs.terminal.task import PEOPLE, WORDS, TerminalTask, lines_file, pick

__all__ = ["KINDS"]


def rename(rng: random.Random) -> TerminalTask:
    """Rename the files of a pattern in nested folders, and no others."""
    old, new = rng.choice((("txt", "md"), ("jpeg", "jpg"), ("htm", "html")))
    names = [
        f"{folder}{word}.{rng.choice((old, old, 'log'))}"
        for folder in ("", "sub/", "sub/deep/")
        for word in pick(rng, 4)
    ]
    renamed = [name[: -len(old)] + new if name.endswith(f".{old}") else name for name in names]
    return TerminalTask(
        f"Rename every file below ~/docs that ends in .{old} so that it ends in .{new} instead. "
        "Leave all other files alone.",
        tuple(lines_file(f"docs/{name}", [f"this is {name}"]) for name in names),
        (
            ("names", "docs", renamed),
            *(("text", f"docs/{b}", f"this is {a}") for a, b in zip(names, renamed, strict=True)),
        ),
        (f'find docs -name "*.{old}" | while read f; do mv "$f" "${{f%.{old}}}.{new}"; done',),
    )


def clean_up(rng: random.Random) -> TerminalTask:
    """Delete files by name and size; deleting any other file fails the task."""
    size = rng.choice((500, 1000, 2000))
    remaining: list[str] = []
    files: list[tuple[str, str, int]] = []
    for folder in ("", "a/", "a/b/"):
        for word in pick(rng, 4):
            suffix = rng.choice(("tmp", "tmp", "dat"))
            length = rng.choice((size // 2, size - 1, size + 1, 2 * size))
            if not files:  # at least one file must be deleted
                suffix, length = "tmp", 2 * size
            files.append((f"work/{folder}{word}.{suffix}", "x" * length, 0o644))
            if suffix != "tmp" or length < size:
                remaining.append(f"{folder}{word}.{suffix}")
    return TerminalTask(
        "Delete every file below ~/work whose name ends in .tmp "
        f"and that is larger than {size} bytes. Delete nothing else.",
        tuple(files),
        (("names", "work", remaining),),
        (f"find work -name '*.tmp' -size +{size}c -delete",),
    )


def sort_photos(rng: random.Random) -> TerminalTask:
    """Move files into folders derived from their names."""
    names = [
        f"{rng.randint(2019, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}_{word}.jpg"
        for word in (*WORDS, *PEOPLE[:3])
    ]
    moved = [f"{name[:4]}/{name[5:7]}/{name}" for name in names]
    return TerminalTask(
        "The photos in ~/photos are called YEAR-MONTH-DAY_name.jpg. "
        "Move each into a folder of its year and month below ~/photos, "
        "so that 2024-05-17_lake.jpg becomes ~/photos/2024/05/2024-05-17_lake.jpg.",
        tuple(lines_file(f"photos/{name}", [name]) for name in names),
        (
            ("names", "photos", moved),
            *(("text", f"photos/{m}", n) for m, n in zip(moved, names, strict=True)),
        ),
        (
            'cd photos && for f in *.jpg; do d="${f:0:4}/${f:5:2}"; '
            'mkdir -p "$d"; mv "$f" "$d/"; done',
        ),
    )


def permissions(rng: random.Random) -> TerminalTask:
    """Set file modes according to the files' contents."""
    scripts = rng.sample(WORDS, 8)
    files, tests = [], []
    for name in scripts:
        program = rng.random() < 0.5
        files.append(
            lines_file(f"bin/{name}", ["#!/bin/sh" if program else "# only notes", f"echo {name}"])
        )
        tests.append(("mode", f"bin/{name}", 0o755 if program else 0o644))
    key = rng.choice(PEOPLE)
    files.append(lines_file(f"keys/{key}.pem", ["secret"]))
    return TerminalTask(
        "In ~/bin, every file whose first line is #!/bin/sh shall be executable for all "
        "(mode 755), the others shall stay as they are. "
        f"The file ~/keys/{key}.pem shall be readable and writable for its owner only (mode 600).",
        tuple(files),
        (*tests, ("mode", f"keys/{key}.pem", 0o600)),
        (
            "for f in bin/*; do head -1 $f | grep -qx '#!/bin/sh' && chmod 755 $f; done; "
            f"chmod 600 keys/{key}.pem",
        ),
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
        "Each folder in ~/releases is a version, MAJOR.MINOR.PATCH. "
        "Make the symbolic link ~/current point to the folder of the highest version; "
        "it points to another one now. Write that version to ~/VERSION.",
        tuple(
            lines_file(f"releases/{version}/notes.txt", [f"release {version}"]) for version in shown
        ),
        (("link", "current", f"releases/{newest}"), ("text", "VERSION", newest)),
        ("v=$(ls releases | sort -V | tail -1); ln -sfn releases/$v current; echo $v > VERSION",),
        f"ln -s releases/{oldest} current",
    )


def find_in_archive(rng: random.Random) -> TerminalTask:
    """Find the archived file that contains a line."""
    token = f"{rng.choice(WORDS)}-{rng.randint(100, 999)}"
    paths = [f"{folder}/{word}.txt" for folder in pick(rng, 3) for word in pick(rng, 4)]
    hit = rng.choice(paths)
    files = [
        lines_file(
            f"pack/{p}", [*rng.choices(WORDS, k=6), token if p == hit else f"{token}x", "end"]
        )
        for p in paths
    ]
    return TerminalTask(
        f"One of the files in ~/backup.tar.gz has a line that is exactly '{token}'. "
        "Write the path of that file, as it stands in the archive, to ~/found.txt, "
        "and copy the file itself to ~/found.copy.",
        tuple(files),
        (
            ("text", "found.txt", hit),
            ("text", "found.copy", next(text for path, text, _ in files if path == f"pack/{hit}")),
        ),
        (
            "mkdir out && tar xzf backup.tar.gz -C out && cd out && "
            f"f=$(grep -rlx -- {token} * | head -1) && echo $f > ../found.txt "
            "&& cp $f ../found.copy && cd .. && rm -r out",
        ),
        "cd pack && tar czf ../backup.tar.gz * && cd .. && rm -r pack",
    )


def make_backup(rng: random.Random) -> TerminalTask:
    """Pack a folder, except some files."""
    excluded = rng.choice(("log", "tmp", "bak"))
    cache = rng.choice(("cache", "build", "node_modules"))
    names = [
        f"{folder}{word}.{rng.choice(('txt', 'md', excluded))}"
        for folder in ("", "src/", "src/deep/", f"{cache}/", f"src/{cache}/")
        for word in pick(rng, 3)
    ]
    names += [f"src/notes.{excluded}", "src/readme.md"]
    packed = sorted(
        f"project/{name}"
        for name in names
        if not name.endswith(f".{excluded}") and cache not in name.split("/")
    )
    return TerminalTask(
        f"Pack the folder ~/project into ~/backup.tar.gz, so that the names in the archive begin "
        f"with project/. Leave out all files that end in .{excluded} and all folders called "
        f"{cache}. Keep ~/project as it is.",
        tuple(lines_file(f"project/{name}", [f"this is {name}"]) for name in names),
        (
            (
                "prints",
                "tar tzf backup.tar.gz | sed 's|^[.]/||' | grep -v '/$' | LC_ALL=C sort",
                "\n".join(packed),
            ),
            ("prints", "tar xzOf backup.tar.gz project/src/readme.md", "this is src/readme.md"),
            ("names", "project", names),
        ),
        (f"tar czf backup.tar.gz --exclude='*.{excluded}' --exclude={cache} project",),
    )


def restore_parts(rng: random.Random) -> TerminalTask:
    """Put parts together; a list of checksums shows which copies are intact and their order."""
    chunks = [
        "".join(f"{rng.choice(WORDS)} {rng.random():.6f}\n" for _ in range(8)) for _ in range(6)
    ]
    names = rng.sample([f"part-{n:02}" for n in range(20)], 6)
    files, sums = [], []
    for name, chunk in zip(names, chunks, strict=True):
        damaged = chunk.replace("0.", "0,", 1)
        copies = [(f"{name}.a", chunk), (f"{name}.b", damaged)]
        if rng.random() < 0.5:
            copies = [(f"{name}.a", damaged), (f"{name}.b", chunk)]
        files += [(f"parts/{copy}", text, 0o644) for copy, text in copies]
        sums.append(hashlib.sha256(chunk.encode()).hexdigest())
    return TerminalTask(
        "A file was split into six parts; ~/parts has two copies of each, of which one is damaged. "
        "Each line of ~/order.txt is the SHA-256 checksum of an intact part, in the order of the "
        "file. Write the whole file to ~/restored.txt.",
        (*files, lines_file("order.txt", sums)),
        (("bytes", "restored.txt", "".join(chunks)), ("names", "parts", [f[0][6:] for f in files])),
        (
            "sha256sum parts/* > sums; for s in $(cat order.txt); do "
            "cat $(grep $s sums | awk '{print $2}'); done > restored.txt",
        ),
    )


KINDS = {
    "Rename": rename,
    "CleanUp": clean_up,
    "SortPhotos": sort_photos,
    "Permissions": permissions,
    "NewestRelease": newest_release,
    "FindInArchive": find_in_archive,
    "MakeBackup": make_backup,
    "RestoreParts": restore_parts,
}
