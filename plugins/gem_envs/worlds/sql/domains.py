"""Domains: the tables and words of the generated databases.

Every domain is a star: events (`Fact`) link an `actor` to an `item`, and every actor belongs to a
group. The domains differ in names, units, codes and date ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DOMAINS", "Domain", "Fact", "Group", "Table"]


@dataclass(frozen=True)
class Group:
    """The table that actors belong to, such as departments."""

    table: str
    noun: str
    names: tuple[str, ...]
    key: str
    """The column of the actors that refers to it."""


@dataclass(frozen=True)
class Table:
    """A table of actors or items, with a name, a category and a number per row."""

    table: str
    noun: str
    plural: str
    category: str
    categories: tuple[str, ...]
    number: str
    numbers: tuple[int, int]
    key: str
    """The column of the events that refers to it."""
    persons: bool = False


@dataclass(frozen=True)
class Fact:
    """The table of events, with a date, an amount and a status code per row."""

    table: str
    plural: str
    amount: str
    amounts: tuple[int, int]
    date: str
    status: str
    codes: tuple[tuple[str, str], ...]
    """(code, meaning); the question uses the meaning, a hint gives the code."""


@dataclass(frozen=True)
class Domain:
    """A database schema with the words for questions about it."""

    name: str
    group: Group
    actor: Table
    item: Table
    fact: Fact

    def schema(self) -> list[str]:
        """Return the CREATE TABLE statements."""
        group, actor, item, fact = self.group, self.actor, self.item, self.fact
        return [
            f"CREATE TABLE {group.table} (id INTEGER PRIMARY KEY, name TEXT)",
            f"CREATE TABLE {actor.table} (id INTEGER PRIMARY KEY, name TEXT, "
            f"{actor.category} TEXT, {actor.number} INTEGER, "
            f"{group.key} INTEGER REFERENCES {group.table}(id))",
            f"CREATE TABLE {item.table} (id INTEGER PRIMARY KEY, name TEXT, "
            f"{item.category} TEXT, {item.number} INTEGER)",
            f"CREATE TABLE {fact.table} (id INTEGER PRIMARY KEY, "
            f"{actor.key} INTEGER REFERENCES {actor.table}(id), "
            f"{item.key} INTEGER REFERENCES {item.table}(id), "
            f"{fact.date} TEXT, {fact.amount} INTEGER, {fact.status} TEXT)",
        ]


_CITIES = ("Arden", "Bellmont", "Corvale", "Dunmere", "Eastholm", "Farrow")

DOMAINS = (
    Domain(
        "web shop",
        Group("regions", "region", ("North", "South", "East", "West", "Islands"), "region_id"),
        Table(
            "customers", "customer", "customers", "city", _CITIES, "loyalty_points", (0, 900),
            "customer_id", persons=True,
        ),
        Table(
            "products", "product", "products", "category",
            ("books", "garden", "kitchen", "sports", "toys"), "price_cents", (199, 9900),
            "product_id",
        ),
        Fact(
            "orders", "orders", "amount_cents", (500, 90000), "ordered_on", "state",
            (("D", "delivered"), ("C", "cancelled"), ("R", "returned")),
        ),
    ),
    Domain(
        "hospital",
        Group("wards", "ward", ("Cedar", "Maple", "Willow", "Oak"), "ward_id"),
        Table(
            "doctors", "doctor", "doctors", "specialty",
            ("cardiology", "neurology", "oncology", "paediatrics", "surgery"), "hired_year",
            (1985, 2023), "doctor_id", persons=True,
        ),
        Table(
            "treatments", "treatment", "treatments", "kind",
            ("imaging", "laboratory", "medication", "therapy"), "minutes", (5, 240),
            "treatment_id",
        ),
        Fact(
            "visits", "visits", "cost", (40, 9000), "visited_on", "outcome",
            (("1", "discharged"), ("2", "referred"), ("3", "admitted")),
        ),
    ),
    Domain(
        "airline",
        Group("bases", "base", ("Harbour", "Lakeside", "Summit", "Valley"), "base_id"),
        Table(
            "pilots", "pilot", "pilots", "rank", ("captain", "first officer", "trainee"),
            "flight_hours", (200, 20000), "pilot_id", persons=True,
        ),
        Table(
            "routes", "route", "routes", "zone", ("domestic", "regional", "overseas"),
            "distance_km", (120, 9800), "route_id",
        ),
        Fact(
            "flights", "flights", "passengers", (8, 390), "flown_on", "punctuality",
            (("OT", "on time"), ("DL", "delayed"), ("CX", "diverted")),
        ),
    ),
    Domain(
        "library",
        Group("branches", "branch", ("Central", "Riverside", "Hilltop", "Station"), "branch_id"),
        Table(
            "members", "member", "members", "membership", ("adult", "child", "student", "senior"),
            "joined_year", (1998, 2024), "member_id", persons=True,
        ),
        Table(
            "books", "book", "books", "genre",
            ("biography", "crime", "history", "poetry", "science"), "pages", (60, 1200), "book_id",
        ),
        Fact(
            "loans", "loans", "days", (1, 400), "lent_on", "status",
            (("r", "returned"), ("o", "overdue"), ("l", "lost")),
        ),
    ),
    Domain(
        "university",
        Group("faculties", "faculty", ("Arts", "Engineering", "Law", "Science"), "faculty_id"),
        Table(
            "lecturers", "lecturer", "lecturers", "title", ("assistant", "associate", "full"),
            "office_number", (100, 499), "lecturer_id", persons=True,
        ),
        Table(
            "courses", "course", "courses", "level", ("bachelor", "master", "doctoral"),
            "credits", (1, 30), "course_id",
        ),
        Fact(
            "exams", "exams", "points", (1, 5000), "held_on", "form",
            (("W", "written"), ("O", "oral"), ("P", "practical")),
        ),
    ),
    Domain(
        "transport firm",
        Group("depots", "depot", ("Dock", "Mill", "Quarry", "Rail", "Tower"), "depot_id"),
        Table(
            "drivers", "driver", "drivers", "licence", ("B", "C1", "C", "CE"), "age", (19, 66),
            "driver_id", persons=True,
        ),
        Table(
            "vehicles", "vehicle", "vehicles", "fuel", ("diesel", "electric", "hydrogen"),
            "payload_kg", (400, 24000), "vehicle_id",
        ),
        Fact(
            "trips", "trips", "distance_km", (2, 1900), "driven_on", "result",
            (("ok", "completed"), ("ab", "aborted"), ("ac", "with an accident")),
        ),
    ),
)  # fmt: skip
