"""Program tasks: scripts, builds and packages that fail."""

from __future__ import annotations

import random

from gem_envs.terminal.task import WORDS, TerminalTask, lines_file, text_of

__all__ = ["KINDS"]


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
        f"~/add.py should print {result_name} of the numbers in the file it is given, "
        "one on each line, but it prints something else. "
        "Fix it: `python3 add.py numbers.txt` must print the right number, "
        "and the program must work for any other file.",
        (
            lines_file("add.py", broken),
            lines_file("numbers.txt", numbers),
            lines_file("other.txt", other),
        ),
        (
            ("prints", "python3 add.py numbers.txt", str(result)),
            ("prints", "python3 add.py other.txt", str(sum(other))),
            ("prints", "printf '5\\n6\\n' > seen.txt && python3 add.py seen.txt", "11"),
            ("text", "numbers.txt", text_of(numbers)),
        ),
        (f"sed -i 's/{_sed(wrong)}/{right}/' add.py",),
    )


def fix_makefile(rng: random.Random) -> TerminalTask:
    """Repair a Makefile: a missing tab, a missing dependency, a wrong name."""
    numbers = [rng.randint(2, 99) for _ in range(6)]
    more = rng.randint(100, 200)
    name = rng.choice(WORDS)
    makefile = [
        f"all: out/{name}.txt",
        "",
        f"out/{name}.txt: total.awk",
        "        mkdir -p out",
        f"        awk -f total.awk data/number.txt > out/{name}.txt",
        "",
        "clean:",
        "        rm -rf out",
    ]
    repaired = text_of(makefile).replace("        ", "\t").replace("number.txt", "numbers.txt")
    repaired = repaired.replace(".txt: total.awk", ".txt: total.awk data/numbers.txt")
    return TerminalTask(
        f"`make` should write the sum of the numbers in ~/data/numbers.txt to ~/out/{name}.txt, "
        "but it fails. Repair ~/Makefile. After a change of ~/data/numbers.txt or of ~/total.awk, "
        "`make` must build the file again; without a change it must do nothing.",
        (
            lines_file("Makefile", makefile),
            lines_file("total.awk", ["{s += $1}", "END {print s}"]),
            lines_file("data/numbers.txt", numbers),
        ),
        (
            ("prints", f"make -s clean all && cat out/{name}.txt", str(sum(numbers))),
            ("prints", f"make -s all && make -q all && cat out/{name}.txt", str(sum(numbers))),
            (
                "prints",
                f"sleep 0.02; echo {more} >> data/numbers.txt; make -s && cat out/{name}.txt",
                str(sum(numbers) + more),
            ),
            (
                "prints",
                f"sleep 0.02; echo '{{s += $1}} END {{print s + 1}}' > total.awk; make -s && "
                f"cat out/{name}.txt",
                str(sum(numbers) + more + 1),
            ),
        ),
        ("make", "cat -A Makefile", f"cat > Makefile <<'EOF'\n{repaired}EOF\nmake"),
    )


def fix_package(rng: random.Random) -> TerminalTask:
    """Repair a circular import and a wrong module name."""
    word, factor = rng.choice(WORDS), rng.randint(3, 9)
    wrong = rng.choice(("helper", "tools", "common"))
    init = [f"from {word}.app import run", "", "__all__ = ['run']"]
    app = [
        f"from {word}.{wrong} import scale",
        f"from {word}.report import line",
        "",
        "LIMIT = 1000",
        "",
        "",
        "def run(values):",
        "    return line(min(LIMIT, sum(scale(v) for v in values)))",
    ]
    scaling = ["def scale(value):", f"    return {factor} * int(value)"]
    report = [f"from {word}.app import LIMIT", "", "", "def line(total):"]
    report += ["    return f'{total} of {LIMIT}'"]
    main = ["import sys", f"from {word} import run", "", "print(run(sys.argv[1:]))"]
    numbers = [rng.randint(1, 30) for _ in range(3)]

    def expected(values: list[int]) -> str:
        return f"{min(1000, factor * sum(values))} of 1000"

    return TerminalTask(
        f"`python3 -m {word} 1 2 3` in the home folder should print the scaled sum of its "
        "arguments and the limit, as in '54 of 1000', but the package cannot be imported. Repair "
        f"it. {word}.app.LIMIT must exist, and everything must work for any numbers.",
        (
            lines_file(f"{word}/__init__.py", init),
            lines_file(f"{word}/__main__.py", main),
            lines_file(f"{word}/app.py", app),
            lines_file(f"{word}/scaling.py", scaling),
            lines_file(f"{word}/report.py", report),
        ),
        (
            ("prints", f"python3 -m {word} 1 2 3", expected([1, 2, 3])),
            ("prints", f"python3 -m {word} {' '.join(map(str, numbers))}", expected(numbers)),
            ("prints", f"python3 -m {word} 900 900", "1000 of 1000"),
            ("prints", f"python3 -c 'import {word}.app; print({word}.app.LIMIT)'", "1000"),
        ),
        (
            f"python3 -m {word} 1 2 3; cat {word}/*.py",
            f"sed -i 's/{word}.{wrong}/{word}.scaling/' {word}/app.py; python3 -m {word} 1 2 3",
            f"sed -i '/LIMIT = /d' {word}/app.py; "
            f"sed -i '1i from {word}.limits import LIMIT' {word}/app.py; "
            f"echo 'LIMIT = 1000' > {word}/limits.py; "
            f"sed -i 's/{word}.app/{word}.limits/' {word}/report.py; python3 -m {word} 1 2 3",
        ),
    )


def fix_tests(rng: random.Random) -> TerminalTask:
    """Repair two functions; other inputs than those of the tests are checked as well."""
    size, width = rng.randint(3, 5), rng.randint(2, 4)
    library = [
        "def chunks(items, size):",
        '    """Split a list into lists of `size` items; the last one may be shorter."""',
        "    return [items[i : i + size] for i in range(0, len(items) - size, size)]",
        "",
        "",
        "def slug(text):",
        '    """Return a text in lower case with one dash between its words."""',
        "    return text.lower().replace(' ', '-')",
        "",
        "",
        "def median(values):",
        '    """Return the middle value, or the mean of the two middle ones."""',
        "    return sorted(values)[len(values) // 2]",
    ]
    tests = [
        "import unittest",
        "from library import chunks, median, slug",
        "",
        "",
        "class TestLibrary(unittest.TestCase):",
        "    def test_chunks(self):",
        f"        self.assertEqual(sum(chunks(list(range(10)), {size}), []), list(range(10)))",
        "",
        "    def test_slug(self):",
        "        self.assertEqual(slug('  Two   Words '), 'two-words')",
        "",
        "    def test_median(self):",
        "        self.assertEqual(median([4, 1, 3, 2]), 2.5)",
        "",
        "",
        "if __name__ == '__main__':",
        "    unittest.main()",
    ]
    items = rng.sample(range(50), 7)
    split = [items[i : i + width] for i in range(0, 7, width)]
    odd = rng.sample(range(50), 5)
    calls = (
        f"chunks({items}, {width}), chunks([], 2), slug('A  b C'), median({odd}), median([1, 2])"
    )
    repaired = (
        "def chunks(items, size):\n"
        "    return [items[i : i + size] for i in range(0, len(items), size)]\n"
        "def slug(text):\n    return '-'.join(text.lower().split())\n"
        "def median(values):\n    v, n = sorted(values), len(values)\n"
        "    return v[n // 2] if n % 2 else (v[n // 2 - 1] + v[n // 2]) / 2\n"
    )
    return TerminalTask(
        "`python3 test_library.py` fails. Repair the functions of ~/library.py, so that they do "
        "what their docstrings promise for any input. Do not change ~/test_library.py.",
        (lines_file("library.py", library), lines_file("test_library.py", tests)),
        (
            ("bytes", "test_library.py", text_of(tests)),
            ("prints", "python3 test_library.py 2>&1 | tail -1", "OK"),
            (
                "prints",
                f'python3 -c "from library import *; print({calls})"',
                f"{split} [] a-b-c {sorted(odd)[2]} 1.5",
            ),
        ),
        (
            "python3 test_library.py; cat library.py test_library.py",
            f"cat > library.py <<'EOF'\n{repaired}EOF\npython3 test_library.py",
        ),
    )


def _sed(text: str) -> str:
    return text.replace("[", "\\[").replace("]", "\\]")


KINDS = {
    "FixScript": fix_script,
    "FixMakefile": fix_makefile,
    "FixPackage": fix_package,
    "FixTests": fix_tests,
}
