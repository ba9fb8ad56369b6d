"""Map: the places of a town, with distances, directions, reviews and lists of saved places."""

from __future__ import annotations

import heapq
import math
import random
from html import escape
from typing import Any, ClassVar

from gem_envs.web.site import (
    Answer,
    Page,
    Redirect,
    Request,
    Site,
    WebTask,
    form,
    link,
    options,
    table,
)

__all__ = ["Map"]

_NAMES = {
    "cafe": ("Blue Kettle", "Corner Cup", "Old Mill Cafe"),
    "museum": ("Clock Museum", "Harbour Museum", "Museum of Maps"),
    "park": ("Elm Park", "Lake Garden", "Rose Hill"),
    "station": ("Central Station", "North Station", "Quay Station"),
    "library": ("Reading Room", "Town Library", "West Library"),
}
_STREETS = ("Mill Lane", "Station Road", "Quay Street", "Elm Avenue", "Hill Street", "Church Walk")
_SPEEDS = {"on foot": 5, "by bike": 15, "by car": 30}
"""Kilometres an hour."""
_OPINIONS = ("Friendly and quiet.", "Worth the way.", "A little crowded.", "Lovely in the evening.")
_ROADS = 3
"""Each place has roads to at least this many of its nearest places."""


class Map(Site):
    """The map; its state is the saved places, the saved routes, and the reviews by place."""

    title = "Town Map"
    menu = (("/", "Places"), ("/directions", "Directions"), ("/saved", "Saved"))
    kinds: ClassVar = ("save", "review", "route", "nearest", "minutes")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.kind_of = {name: kind for kind, names in _NAMES.items() for name in names}
        spots = rng.sample([(x, y) for x in range(10) for y in range(10)], len(self.kind_of))
        # halves of a kilometre; the small part makes equal distances unlikely
        self.spots = {
            name: (x / 2 + rng.random() / 5, y / 2 + rng.random() / 5)
            for name, (x, y) in zip(self.kind_of, spots, strict=True)
        }
        self.addresses = {
            name: f"{rng.choice(_STREETS)} {number}"
            for name, number in zip(self.kind_of, rng.sample(range(1, 99), len(self.kind_of)))
        }
        self.roads = self._make_roads()
        self.state = {"saved": [], "routes": [], "reviews": {name: [] for name in self.kind_of}}

    def answer(self, request: Request) -> Answer:
        match request.path:
            case ():
                return Page("Places", self._places(request.query.get("search", "")))
            case ("place", name) if _named(name) in self.kind_of:
                return self._place(_named(name))
            case ("place", name, action) if _named(name) in self.kind_of and request.posted:
                return self._change(_named(name), action, request.posted)
            case ("directions",):
                return self._directions(request.query)
            case ("routes",) if request.posted is not None:
                route = [request.posted.get(part, "") for part in ("from", "to", "by")]
                if {route[0], route[1]} <= set(self.kind_of) and route[2] in _SPEEDS:
                    self.state["routes"].append(route)
                return Redirect("/saved")
            case ("saved",):
                names = [link(_path(name), name) for name in self.state["saved"]]
                names += [escape(f"{a} to {b} {by}") for a, b, by in self.state["routes"]]
                return Page("Saved", "".join(f"<p>{n}</p>" for n in names) or "<p>None yet.</p>")
        return self.missing()

    def task_save(self) -> WebTask:
        """Save a place."""
        name = self._draw_place()
        return WebTask(
            "save",
            f"Save the {self.kind_of[name]} {name} to your list of places.",
            self.changed(lambda s: s["saved"].append(name)),
            plan=(*self._steps_to(name), ("click", "button 'Save place'"), ("stop", "")),
        )

    def task_review(self) -> WebTask:
        """Write a review with a number of stars."""
        name, text = self._draw_place(), self.rng.choice(_OPINIONS)
        return self._review(name, self.rng.randint(1, 5), text, f"exactly this text: {text}")

    def task_route(self) -> WebTask:
        """Save a route."""
        start, goal = self.rng.sample(sorted(self.kind_of), 2)
        by = self.rng.choice(tuple(_SPEEDS))
        return WebTask(
            "route",
            f"Save the route from {start} to {goal} {by}.",
            self.changed(lambda s: s["routes"].append([start, goal, by])),
            plan=(
                *self._steps_to_route(start, goal, by),
                ("click", "button 'Save route'"),
                ("stop", ""),
            ),
        )

    def task_nearest(self) -> WebTask:
        """Ask for the nearest place of a kind; the page is ordered by name."""
        name = self._draw_place()
        kind = self.rng.choice([k for k in _NAMES if k != self.kind_of[name]])
        nearest = min(_NAMES[kind], key=lambda other: self._distance(name, other))
        shown = [f"{self._distance(name, other):.2f}" for other in _NAMES[kind]]
        if len({*shown}) < len(shown):
            return self.task_nearest()  # two may be equally near
        return WebTask(
            "nearest",
            f"Which {kind} is nearest to {name} in a straight line?",
            self.changed(lambda state: None),
            answer=nearest,
            plan=(*self._steps_to(name), ("stop", nearest)),
        )

    def task_minutes(self) -> WebTask:
        """Ask for the time of a route."""
        start, goal = self.rng.sample(sorted(self.kind_of), 2)
        by = self.rng.choice(tuple(_SPEEDS))
        minutes = str(self._minutes(self._route(start, goal)[1], by))
        return WebTask(
            "minutes",
            f"How many minutes does the route from {start} to {goal} take {by}? "
            "Answer with the number alone.",
            self.changed(lambda state: None),
            answer=minutes,
            plan=(*self._steps_to_route(start, goal, by), ("stop", minutes)),
        )

    def write(self, text: str, said: str) -> WebTask:
        """Write the text as a review."""
        return self._review(self._draw_place(), self.rng.randint(1, 5), text, said)

    def _review(self, name: str, stars: int, text: str, said: str) -> WebTask:
        review = {"stars": stars, "text": text}
        return WebTask(
            "review",
            f"Review the {self.kind_of[name]} {name} with {stars} stars and {said}",
            self.changed(lambda s: s["reviews"][name].append(review)),
            plan=(
                *self._steps_to(name),
                ("select", "combobox 'Stars'", str(stars)),
                ("type", "textbox 'Review'", text),
                ("click", "button 'Send review'"),
                ("stop", ""),
            ),
        )

    def _draw_place(self) -> str:
        return self.rng.choice(sorted(self.kind_of))

    def _steps_to(self, name: str) -> tuple[tuple[str, ...], ...]:
        return (
            ("type", "textbox 'Search'", name),
            ("click", "button 'Search'"),
            ("click", f"link '{name}'"),
        )

    def _steps_to_route(self, start: str, goal: str, by: str) -> tuple[tuple[str, ...], ...]:
        return (
            ("click", "link 'Directions'"),
            ("select", "combobox 'From'", start),
            ("select", "combobox 'To'", goal),
            ("select", "combobox 'Travel'", by),
            ("click", "button 'Show route'"),
        )

    def _make_roads(self) -> dict[str, dict[str, float]]:
        """Connect every place with its nearest ones, and the parts of the town with each other."""
        roads: dict[str, dict[str, float]] = {name: {} for name in self.spots}

        def connect(a: str, b: str) -> None:
            roads[a][b] = roads[b][a] = round(self._distance(a, b) * 1.2, 1)

        for name in self.spots:
            for other in sorted(self.spots, key=lambda o: self._distance(name, o))[1 : _ROADS + 1]:
                connect(name, other)
        joined = {next(iter(self.spots))}
        while len(joined) < len(self.spots):
            if (reached := {o for name in joined for o in roads[name]} - joined) == set():
                pairs = [(a, b) for a in joined for b in self.spots if b not in joined]
                connect(*min(pairs, key=lambda pair: self._distance(*pair)))
            joined |= reached
        return roads

    def _distance(self, a: str, b: str) -> float:
        return math.dist(self.spots[a], self.spots[b])

    def _route(self, start: str, goal: str) -> tuple[list[str], float]:
        """Return the shortest way by road, and its length in kilometres."""
        queue, done = [(0.0, [start])], set()
        while True:
            length, way = heapq.heappop(queue)
            if way[-1] == goal:
                return way, round(length, 1)
            if way[-1] not in done:
                done.add(way[-1])
                for other, road in self.roads[way[-1]].items():
                    heapq.heappush(queue, (length + road, [*way, other]))

    def _minutes(self, length: float, by: str) -> int:
        return max(1, round(60 * length / _SPEEDS[by]))

    def _places(self, search: str) -> str:
        field = (
            "<p><label>Search "
            f"<input name='search' value='{escape(search, quote=True)}'></label></p>"
        )
        rows = [
            [link(_path(name), name), kind, self.addresses[name]]
            for name, kind in self.kind_of.items()
            if search.lower() in name.lower()
        ]
        return form("/", "Search", field, method="get") + table(("place", "kind", "address"), rows)

    def _place(self, name: str) -> Page:
        reviews = "".join(
            f"<p>{review['stars']} stars: {escape(review['text'])}</p>"
            for review in self.state["reviews"][name]
        )
        distances = [
            [other, self.kind_of[other], f"{self._distance(name, other):.2f} km"]
            for other in sorted(self.kind_of)
            if other != name
        ]
        review = form(
            f"{_path(name)}/review",
            "Send review",
            f"<p><label>Stars <select name='stars'>{options('12345')}</select></label></p>",
            "<p><label>Review <textarea name='text' required></textarea></label></p>",
        )
        return Page(
            name,
            f"<p>{self.kind_of[name]}, {self.addresses[name]}</p>"
            + form(f"{_path(name)}/save", "Save place", "<input type='hidden' name='x' value='x'>")
            + f"<h2>Reviews</h2>{reviews}{review}<h2>Distances in a straight line</h2>"
            + table(("place", "kind", "distance"), distances),
        )

    def _directions(self, query: Any) -> Page:
        start, goal, by = (query.get(name, "") for name in ("from", "to", "by"))
        names = sorted(self.kind_of)
        lists = (
            ("From", "from", options(names, start)),
            ("To", "to", options(names, goal)),
            ("Travel", "by", options(_SPEEDS, by)),
        )
        fields = [
            f"<p><label>{label} <select name='{name}'>{values}</select></label></p>"
            for label, name, values in lists
        ]
        body = form("/directions", "Show route", *fields, method="get")
        if {start, goal} <= set(self.kind_of) and by in _SPEEDS:
            way, length = self._route(start, goal)
            steps = "".join(f"<li>{escape(name)}</li>" for name in way)
            hidden = "".join(
                f"<input type='hidden' name='{name}' value='{value}'>"
                for name, value in (("from", start), ("to", goal), ("by", by))
            )
            minutes = self._minutes(length, by)
            body += (
                f"<h2>{start} to {goal} {by}</h2><ol>{steps}</ol>"
                f"<p>{length} km, {minutes} minutes</p>{form('/routes', 'Save route', hidden)}"
            )
        return Page("Directions", body)

    def _change(self, name: str, action: str, posted: Any) -> Answer:
        text, stars = posted.get("text", "").strip(), posted.get("stars", "")
        if action == "save" and name not in self.state["saved"]:
            self.state["saved"].append(name)
        elif action == "review" and text and stars in tuple("12345"):
            self.state["reviews"][name].append({"stars": int(stars), "text": text})
        return Redirect(_path(name))


def _path(name: str) -> str:
    return f"/place/{name.replace(' ', '_')}"


def _named(part: str) -> str:
    return part.replace("_", " ")
