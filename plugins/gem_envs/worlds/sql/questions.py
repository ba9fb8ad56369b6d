"""Questions: a question in English, its gold query, and a hint about codes, at three levels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gem_envs.worlds.sql.database import YEARS
from gem_envs.worlds.sql.domains import Domain, Table

__all__ = ["LEVELS", "Level", "Question", "draw_question"]

Level = Literal["simple", "moderate", "challenging"]
LEVELS: tuple[Level, ...] = ("simple", "moderate", "challenging")


@dataclass(frozen=True)
class Question:
    """A question about a database."""

    text: str
    query: str
    ordered: bool = False
    """Whether the order of the rows counts."""
    hint: str = ""
    """Knowledge that the schema does not contain."""
    top_two: str = ""
    """A query for the two best values; they must differ, or the answer would be ambiguous."""


class _Draft:
    """What a template needs: the domain, the names and the random generator."""

    def __init__(
        self, domain: Domain, actors: Sequence[str], items: Sequence[str], rng: random.Random
    ) -> None:
        self.rng = rng
        self.group, self.actor = domain.group, domain.actor
        self.item, self.fact = domain.item, domain.fact
        self.actor_name, self.item_name = rng.choice(actors), rng.choice(items)
        self.group_name = rng.choice(domain.group.names)
        self.year = rng.randint(*YEARS)
        self.code, self.meaning = rng.choice(domain.fact.codes)
        self.hint = f"{self.meaning} means {self.fact.table}.{self.fact.status} = '{self.code}'"
        self.table, self.name = rng.choice(
            [(self.actor, self.actor_name), (self.item, self.item_name)]
        )
        self.in_year = f"substr({self.fact.date}, 1, 4) = '{self.year}'"
        self.join_actor = (
            f"{self.fact.table} f JOIN {self.actor.table} a ON f.{self.actor.key} = a.id"
        )
        self.join_item = f"{self.fact.table} f JOIN {self.item.table} i ON f.{self.item.key} = i.id"

    def category(self, table: Table) -> str:
        return self.rng.choice(table.categories)


def _words(column: str) -> str:
    return column.replace("_", " ")


def _number_of_one(d: _Draft) -> Question:
    t = d.table
    return Question(
        f"What is the {_words(t.number)} of the {t.noun} {d.name}?",
        f"SELECT {t.number} FROM {t.table} WHERE name = '{d.name}'",
    )


def _count_of_category(d: _Draft) -> Question:
    t, value = d.table, d.category(d.table)
    return Question(
        f"How many {t.plural} have the {_words(t.category)} {value!r}?",
        f"SELECT COUNT(*) FROM {t.table} WHERE {t.category} = '{value}'",
    )


def _names_above(d: _Draft) -> Question:
    t = d.table
    low, high = t.numbers
    least = d.rng.randint(low + (high - low) // 2, high - (high - low) // 5)
    return Question(
        f"List the names of the {t.plural} whose {_words(t.number)} is above {least}, "
        "in alphabetical order.",
        f"SELECT name FROM {t.table} WHERE {t.number} > {least} ORDER BY name",
        ordered=True,
    )


def _average_of_category(d: _Draft) -> Question:
    t, value = d.table, d.category(d.table)
    return Question(
        f"What is the average {_words(t.number)} of the {t.plural} with the {_words(t.category)} "
        f"{value!r}?",
        f"SELECT AVG({t.number}) FROM {t.table} WHERE {t.category} = '{value}'",
    )


def _largest(d: _Draft) -> Question:
    t = d.table
    return Question(
        f"Which {t.noun} has the highest {_words(t.number)}? Give the name.",
        f"SELECT name FROM {t.table} ORDER BY {t.number} DESC LIMIT 1",
        top_two=f"SELECT {t.number} FROM {t.table} ORDER BY {t.number} DESC LIMIT 2",
    )


def _count_with_status(d: _Draft) -> Question:
    return Question(
        f"How many {d.fact.plural} of the {d.actor.noun} {d.actor_name} were {d.meaning}?",
        f"SELECT COUNT(*) FROM {d.join_actor} "
        f"WHERE a.name = '{d.actor_name}' AND f.{d.fact.status} = '{d.code}'",
        hint=d.hint,
    )


def _total_of_category(d: _Draft) -> Question:
    value = d.category(d.item)
    return Question(
        f"What is the total {_words(d.fact.amount)} of the {d.fact.plural} with {d.item.plural} "
        f"of the {_words(d.item.category)} {value!r}?",
        f"SELECT SUM(f.{d.fact.amount}) FROM {d.join_item} WHERE i.{d.item.category} = '{value}'",
    )


def _actors_per_group(d: _Draft) -> Question:
    value = d.category(d.actor)
    return Question(
        f"For each {d.group.noun} with at least one such {d.actor.noun}: how many {d.actor.plural} "
        f"have the {_words(d.actor.category)} {value!r}? "
        f"Give the name of the {d.group.noun} and the number.",
        f"SELECT g.name, COUNT(*) FROM {d.actor.table} a JOIN {d.group.table} g "
        f"ON a.{d.group.key} = g.id WHERE a.{d.actor.category} = '{value}' GROUP BY g.id",
    )


def _total_of_group(d: _Draft) -> Question:
    return Question(
        f"What is the total {_words(d.fact.amount)} of the {d.fact.plural} in {d.year} by "
        f"{d.actor.plural} of the {d.group.noun} {d.group_name}?",
        f"SELECT SUM(f.{d.fact.amount}) FROM {d.join_actor} JOIN {d.group.table} g "
        f"ON a.{d.group.key} = g.id WHERE g.name = '{d.group_name}' AND {d.in_year}",
    )


def _items_of_actor(d: _Draft) -> Question:
    return Question(
        f"List the names of the {d.item.plural} in {d.fact.plural} of the {d.actor.noun} "
        f"{d.actor_name}, each once, in alphabetical order.",
        f"SELECT DISTINCT i.name FROM {d.join_actor} JOIN {d.item.table} i "
        f"ON f.{d.item.key} = i.id WHERE a.name = '{d.actor_name}' ORDER BY i.name",
        ordered=True,
    )


def _best_actor(d: _Draft) -> Question:
    totals = (
        f"FROM {d.join_actor} WHERE f.{d.fact.status} = '{d.code}' AND {d.in_year} "
        f"GROUP BY a.id ORDER BY SUM(f.{d.fact.amount}) DESC LIMIT"
    )
    return Question(
        f"Which {d.actor.noun} has the highest total {_words(d.fact.amount)} of {d.fact.plural} in "
        f"{d.year} that were {d.meaning}? Give the name and the total.",
        f"SELECT a.name, SUM(f.{d.fact.amount}) {totals} 1",
        hint=d.hint,
        top_two=f"SELECT SUM(f.{d.fact.amount}) {totals} 2",
    )


def _actors_without(d: _Draft) -> Question:
    return Question(
        f"List the names of the {d.actor.plural} without any {d.fact.plural} with {d.item.plural} "
        f"of the {_words(d.item.category)} {(value := d.category(d.item))!r}, "
        "in alphabetical order.",
        f"SELECT name FROM {d.actor.table} WHERE id NOT IN (SELECT f.{d.actor.key} "
        f"FROM {d.join_item} WHERE i.{d.item.category} = '{value}') ORDER BY name",
        ordered=True,
    )


def _percentage(d: _Draft) -> Question:
    return Question(
        f"Which percentage of the {d.fact.plural} in {d.year} was {d.meaning}? "
        "Round to two decimals.",
        f"SELECT ROUND(100.0 * SUM({d.fact.status} = '{d.code}') / COUNT(*), 2) "
        f"FROM {d.fact.table} WHERE {d.in_year}",
        hint=d.hint,
    )


def _average_per_category(d: _Draft) -> Question:
    least = d.rng.randint(3, 6)
    return Question(
        f"For each {_words(d.item.category)} of {d.item.plural} with more than {least} "
        f"{d.fact.plural} in {d.year}: what is the average {_words(d.fact.amount)} of these "
        f"{d.fact.plural}, rounded to two decimals? Give the {_words(d.item.category)} and the "
        "average.",
        f"SELECT i.{d.item.category}, ROUND(AVG(f.{d.fact.amount}), 2) FROM {d.join_item} "
        f"WHERE {d.in_year} GROUP BY i.{d.item.category} HAVING COUNT(*) > {least}",
    )


def _above_average(d: _Draft) -> Question:
    totals = f"SELECT SUM({d.fact.amount}) AS total FROM {d.fact.table} GROUP BY {d.actor.key}"
    return Question(
        f"List the names of the {d.actor.plural} whose total {_words(d.fact.amount)} of "
        f"{d.fact.plural} is above the average total of all {d.actor.plural} with at least one "
        "of them, in alphabetical order.",
        f"SELECT a.name FROM {d.join_actor} GROUP BY a.id "
        f"HAVING SUM(f.{d.fact.amount}) > (SELECT AVG(total) FROM ({totals})) ORDER BY a.name",
        ordered=True,
    )


def _best_month(d: _Draft) -> Question:
    months = (
        f"FROM {d.fact.table} WHERE {d.in_year} GROUP BY substr({d.fact.date}, 6, 2) "
        f"ORDER BY SUM({d.fact.amount}) DESC LIMIT"
    )
    return Question(
        f"In which month of {d.year} was the total {_words(d.fact.amount)} of all {d.fact.plural} "
        "highest? Give the month as two digits, and the total.",
        f"SELECT substr({d.fact.date}, 6, 2), SUM({d.fact.amount}) {months} 1",
        hint=f"{d.fact.table}.{d.fact.date} is YYYY-MM-DD",
        top_two=f"SELECT SUM({d.fact.amount}) {months} 2",
    )


_TEMPLATES: dict[Level, tuple[Callable[[_Draft], Question], ...]] = {
    "simple": (_number_of_one, _count_of_category, _names_above, _average_of_category, _largest),
    "moderate": (
        _count_with_status,
        _total_of_category,
        _actors_per_group,
        _total_of_group,
        _items_of_actor,
    ),
    "challenging": (
        _best_actor,
        _actors_without,
        _percentage,
        _average_per_category,
        _above_average,
        _best_month,
    ),
}


def draw_question(
    level: Level, domain: Domain, actors: Sequence[str], items: Sequence[str], rng: random.Random
) -> Question:
    """Draw a question of a level about a database with these actors and items."""
    return rng.choice(_TEMPLATES[level])(_Draft(domain, actors, items, rng))
