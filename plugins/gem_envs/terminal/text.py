"""Text tasks: tables, lists and letters."""

from __future__ import annotations

import json
import random

from gem_envs.terminal.task import (
    ITEMS,
    PEOPLE,
    WORDS,
    File,
    TerminalTask,
    Test,
    lines_file,
    pick,
    table_file,
    text_of,
)

__all__ = ["KINDS"]


def sum_column(rng: random.Random) -> TerminalTask:
    """Sum products over the rows of a table."""
    rows = [
        (item, rng.randint(1, 60), rng.randint(1, 90), rng.choice(("north", "south")))
        for item in rng.choices(ITEMS, k=25)
    ]
    chosen = rng.choice(("north", "south"))
    total = sum(amount * price for _, amount, price, region in rows if region == chosen)
    return TerminalTask(
        "~/orders.csv has a header and the columns item, amount, price and region. "
        "Write the sum of amount times price "
        f"over the orders of the region {chosen} to ~/total.txt.",
        (table_file("orders.csv", ("item", "amount", "price", "region"), rows),),
        (("text", "total.txt", str(total)),),
        (f"awk -F, '$4 == \"{chosen}\" {{s += $2 * $3}} END {{print s}}' orders.csv > total.txt",),
    )


def unique_addresses(rng: random.Random) -> TerminalTask:
    """Sort and remove duplicates, ignoring case."""
    addresses = [
        f"{person}@{word}.example"
        for person, word in zip(PEOPLE, rng.choices(WORDS, k=len(PEOPLE)), strict=True)
    ]
    lines = [rng.choice((a, a.upper(), a.title())) for a in rng.choices(addresses, k=40)]
    unique = sorted({line.lower() for line in lines})
    return TerminalTask(
        "~/subscribers.txt has one mail address on each line, "
        "many of them several times and in different upper and lower case. "
        "Write every address once, in lower case and sorted, to ~/unique.txt.",
        (lines_file("subscribers.txt", lines),),
        (("text", "unique.txt", "\n".join(unique)),),
        ("tr A-Z a-z < subscribers.txt | LC_ALL=C sort -u > unique.txt",),
    )


def json_report(rng: random.Random) -> TerminalTask:
    """Convert JSON to a table."""
    people = rng.sample(PEOPLE, 9)
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
        "~/scores.json is a list of objects with name, team and score. "
        f"Write a line name,score to ~/report.csv for each member of the team {team}, "
        "the highest score first and equal ones by name, without a header.",
        (("scores.json", json.dumps(records, indent=1), 0o644),),
        (("text", "report.csv", expected),),
        (
            'python3 -c "import json; '
            f"rows = [r for r in json.load(open('scores.json')) if r['team'] == '{team}']; "
            "print(*(r['name'] + ',' + str(r['score']) "
            "for r in sorted(rows, key=lambda r: (-r['score'], r['name']))), sep='\\n')\" "
            "> report.csv",
        ),
    )


def redact(rng: random.Random) -> TerminalTask:
    """Replace mail addresses in several files."""
    files: list[File] = []
    tests: list[Test] = []
    for word in pick(rng, 5):
        before, after = [], []
        for _ in range(rng.randint(6, 12)):
            name, place = rng.choice(PEOPLE), rng.choice(WORDS)
            address = f"{name}.{rng.choice(WORDS)}@{place}.example"
            line = rng.choice(("{} wrote to us", "ask {} or {}", "nothing @ {}", "{}, as agreed"))
            mail = rng.random() < 0.6
            before.append(line.replace("{}", address if mail else name))
            after.append(line.replace("{}", "[mail]" if mail else name))
        files.append(lines_file(f"letters/{word}.txt", [*before, "end: a@b.example"]))
        tests.append(("bytes", f"letters/{word}.txt", text_of([*after, "end: [mail]"])))
    return TerminalTask(
        "In every file of ~/letters, replace each mail address by [mail]. An address consists of "
        "letters and dots, an @, and letters and dots that end in .example. Change nothing else.",
        tuple(files),
        tuple(tests),
        (r"sed -i -E 's/[a-z.]+@[a-z.]+\.example/[mail]/g' letters/*",),
    )


def join_tables(rng: random.Random) -> TerminalTask:
    """Join two tables by a column; some rows have no partner."""
    numbers = rng.sample(range(100, 999), 14)
    customers = [(n, rng.choice(PEOPLE), rng.choice(("north", "south"))) for n in numbers[:10]]
    orders = [(rng.choice(numbers), rng.choice(ITEMS), rng.randint(1, 50)) for _ in range(30)]
    totals: dict[int, int] = {}
    for number, _, amount in orders:
        totals[number] = totals.get(number, 0) + amount
    rows = [f"{n},{name},{region},{totals.get(n, 0)}" for n, name, region in sorted(customers)]
    return TerminalTask(
        "~/customers.csv has the columns number, name and region; ~/orders.csv has number, item "
        "and amount. Write ~/totals.csv without a header: for each customer a line "
        "number,name,region,total, sorted by number, where total is the sum of the amounts of the "
        "customer's orders, 0 without orders. Orders of unknown customers do not count.",
        (
            table_file("customers.csv", ("number", "name", "region"), customers),
            table_file("orders.csv", ("number", "item", "amount"), orders),
        ),
        (("text", "totals.csv", "\n".join(rows)),),
        (
            "awk -F, 'FNR == 1 {next} NR == FNR {t[$1] += $3; next} "
            '{print $1 "," $2 "," $3 "," t[$1] + 0}\' orders.csv customers.csv '
            "| sort -n > totals.csv",
        ),
    )


KINDS = {
    "SumColumn": sum_column,
    "UniqueAddresses": unique_addresses,
    "JsonReport": json_report,
    "Redact": redact,
    "JoinTables": join_tables,
}
