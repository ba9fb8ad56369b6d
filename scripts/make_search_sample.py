"""Write the deep search sample: a corpus about an invented country, and multi-hop questions.

    python scripts/make_search_sample.py [FOLDER]

The country is invented, so a model does not know the answers and has to search. The files ship in
plugins/gem_envs/data, and a test compares them with the output of this script.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "plugins" / "gem_envs" / "data"
SYLLABLES = (
    "al",
    "bor",
    "cas",
    "dun",
    "el",
    "far",
    "gil",
    "hav",
    "il",
    "jor",
    "kel",
    "lun",
    "mor",
    "nor",
    "os",
    "pel",
    "quin",
    "ros",
)
TOWN_ENDINGS = ("stad", "wick", "mere", "ford", "holm", "by", "gate", "burg")
FIRM_ENDINGS = ("ex", "ona", "ium", "etta", "ora")
RIVER_ENDINGS = ("une", "ava", "esk", "orn", "ith", "yde")
FIRST = (
    "Ada",
    "Bruno",
    "Clara",
    "Dario",
    "Edda",
    "Felix",
    "Greta",
    "Hugo",
    "Ilse",
    "Jonas",
    "Karin",
    "Leo",
    "Mira",
    "Nils",
    "Olga",
)
LAST = (
    "Ahlberg",
    "Brandt",
    "Corvin",
    "Dahl",
    "Eklund",
    "Falk",
    "Granberg",
    "Hallin",
    "Iversen",
    "Juhl",
    "Kjellin",
    "Lindt",
    "Moss",
)
TRADES = (
    "botanist",
    "cartographer",
    "composer",
    "engineer",
    "novelist",
    "physician",
    "poet",
    "astronomer",
)
PRODUCTS = (
    "barometers",
    "bicycles",
    "cheese",
    "clocks",
    "fountain pens",
    "kayaks",
    "lanterns",
    "looms",
    "pianos",
    "telescopes",
)
WONDERS = (
    "a wooden bridge",
    "a lighthouse",
    "a glass market hall",
    "a round library",
    "a botanical garden",
    "an old salt works",
)
NOVELS = (
    "The Quiet Ferry",
    "Seven Winters",
    "A Map of Salt",
    "The Glassmaker",
    "Letters to the North",
    "The Last Orchard",
)
NOVELS += (
    "Under the Lantern",
    "The Tide Keeper",
    "An Empty Station",
    "Harvest of Snow",
    "The Blue Ledger",
    "Two Bridges",
)


def world(rng: random.Random) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return (passages, questions)."""
    rivers = {name: {"length": rng.randint(60, 990)} for name in names(rng, RIVER_ENDINGS, 10)}
    towns: dict[str, dict[str, Any]] = {
        name: {
            "river": rng.choice(list(rivers)),
            "founded": rng.randint(1050, 1880),
            "wonder": rng.choice(WONDERS),
        }
        for name in names(rng, TOWN_ENDINGS, 36)
    }
    for river in rivers.values():
        river["mouth"] = rng.choice(list(towns))
    full = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], 60)
    people: dict[str, dict[str, Any]] = {
        name: {
            "town": rng.choice(list(towns)),
            "born": rng.randint(1740, 1950),
            "trade": rng.choice(TRADES),
        }
        for name in full
    }
    founders = rng.sample(full, 24)
    companies: dict[str, dict[str, Any]] = {
        f"{name} Works": {
            "founder": founder,
            "town": rng.choice(list(towns)),
            "product": rng.choice(PRODUCTS),
        }
        for name, founder in zip(names(rng, FIRM_ENDINGS, 24), founders, strict=True)
    }
    for company in companies.values():
        company["founded"] = people[company["founder"]]["born"] + rng.randint(20, 40)
    authors = rng.sample([name for name in full if name not in founders], len(NOVELS))
    novels: dict[str, dict[str, Any]] = {
        title: {
            "author": author,
            "year": people[author]["born"] + rng.randint(25, 50),
            "town": rng.choice(list(towns)),
        }
        for title, author in zip(NOVELS, authors, strict=True)
    }
    facts = (rivers, towns, people, companies, novels)
    return passages(rng, *facts), questions(rng, *facts)


def names(rng: random.Random, endings: Sequence[str], count: int) -> list[str]:
    """Return different names that sound alike."""
    candidates = [
        f"{a}{b}{end}".capitalize()
        for a in SYLLABLES
        for b in ("", *SYLLABLES[:4])
        for end in endings
        if a != b
    ]
    return rng.sample(candidates, count)


def passages(
    rng: random.Random, rivers: Any, towns: Any, people: Any, companies: Any, novels: Any
) -> list[dict[str, str]]:
    """Return one passage per river, town, person, company and novel, shuffled."""
    texts = []
    for name, river in rivers.items():
        text = (
            f"The {name} is a river in Estmark. "
            f"It is {river['length']} kilometres long and reaches the sea at {river['mouth']}."
        )
        texts.append((f"{name} (river)", text))
    for name, town in towns.items():
        text = (
            f"{name} is a town in Estmark on the river {town['river']}. "
            f"It was founded in {town['founded']} "
            f"and has {town['wonder']}, which many visitors come to see."
        )
        texts.append((name, text))
    for name, person in people.items():
        text = f"{name} was a {person['trade']} of Estmark, "
        text += f"born in {person['town']} in {person['born']}."
        written = [title for title, novel in novels.items() if novel["author"] == name]
        founded = [title for title, company in companies.items() if company["founder"] == name]
        text += "".join(f' Among the works is the novel "{title}".' for title in written)
        text += "".join(f" Later in life came the firm {title}." for title in founded)
        texts.append((name, text))
    for name, company in companies.items():
        text = (
            f"{name} is a firm that makes {company['product']}. "
            f"It was founded in {company['founded']} by {company['founder']} "
            f"and still has its works in {company['town']}."
        )
        texts.append((name, text))
    for title, novel in novels.items():
        text = (
            f'"{title}" is a novel by {novel["author"]}, published in {novel["year"]}. '
            f"The story takes place in {novel['town']}."
        )
        texts.append((f"{title} (novel)", text))
    rng.shuffle(texts)
    return [
        {"id": str(number), "title": title, "text": text}
        for number, (title, text) in enumerate(texts)
    ]


def questions(
    rng: random.Random, rivers: Any, towns: Any, people: Any, companies: Any, novels: Any
) -> list[dict[str, Any]]:
    """Return questions, each with the titles of the passages that answer it, hop by hop."""
    rows = []

    def ask(text: str, answer: object, *titles: str) -> None:
        rows.append(
            {"question": text, "answer": [str(answer)], "hops": len(titles), "titles": list(titles)}
        )

    for name in rng.sample(list(people), 24):
        person = people[name]
        town = towns[person["town"]]
        ask(f"In which town was {name} born?", person["town"], name)
        ask(
            f"On which river does the town lie where {name} was born?",
            town["river"],
            name,
            person["town"],
        )
        ask(
            f"How many kilometres long is the river on which the town lies where {name} was born?",
            rivers[town["river"]]["length"],
            name,
            person["town"],
            f"{town['river']} (river)",
        )
    for name in rng.sample(list(companies), 16):
        company = companies[name]
        founder, town = company["founder"], company["town"]
        ask(f"Who founded the firm {name}?", founder, name)
        ask(
            f"In which year was the founder of the firm {name} born?",
            people[founder]["born"],
            name,
            founder,
        )
        ask(
            f"In which year was the town founded where the firm {name} has its works?",
            towns[town]["founded"],
            name,
            town,
        )
    for title, novel in novels.items():
        author = people[novel["author"]]
        ask(f'In which year was the novel "{title}" published?', novel["year"], f"{title} (novel)")
        ask(
            f'On which river lies the town where the author of the novel "{title}" was born?',
            towns[author["town"]]["river"],
            f"{title} (novel)",
            novel["author"],
            author["town"],
        )
        ask(
            f'In which year was the town founded where the novel "{title}" takes place?',
            towns[novel["town"]]["founded"],
            f"{title} (novel)",
            novel["town"],
        )
    rng.shuffle(rows)
    return rows


def main(folder: Path) -> None:
    """Write both files."""
    corpus, tasks = world(random.Random(20))
    for name, rows in (("sample_search_corpus.jsonl", corpus), ("sample_search.jsonl", tasks)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{len(rows)} lines in {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
