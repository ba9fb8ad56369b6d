"""Wiki: linked, editable pages about the towns, rivers and people of an invented country."""

from __future__ import annotations

import random
import re
from html import escape, unescape
from typing import Any, ClassVar
from urllib.parse import quote

from gem_envs.web.site import Answer, Page, Redirect, Request, Site, WebTask, form, link

__all__ = ["Wiki"]

_TOWNS = ("Almery", "Borvik", "Castell", "Dunmore", "Elsted", "Farrow", "Gildern", "Haveland")
_RIVERS = ("Aure", "Brent", "Corve", "Dove")
_PEOPLE = (
    "Ilse Varn",
    "Tomas Reck",
    "Nadia Holm",
    "Piet Oster",
    "Rosa Quill",
    "Emil Thorne",
    "Greta Lund",
    "Hanno Birk",
)
_TRADES = ("painter", "engineer", "poet", "physician", "composer", "botanist")
_Facts = list[dict[str, Any]]
_LINK = re.compile(r"\[\[([^\]]+)\]\]")


class Wiki(Site):
    """The wiki; its state is the text and the number of edits of every page, by title."""

    title = "Wiki of Varland"
    menu = (("/", "Main page"), ("/all", "All pages"), ("/new", "New page"))
    kinds: ClassVar = ("correct", "create", "follow_links")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        people = rng.sample(_PEOPLE, len(_TOWNS))
        self.towns: _Facts = [
            {
                "name": town,
                "river": rng.choice(_RIVERS),
                "founded": rng.randint(1100, 1890),
                "person": person,
            }
            for town, person in zip(_TOWNS, people, strict=True)
        ]
        self.rivers: _Facts = [
            {"name": river, "length": rng.randint(40, 900), "mouth": rng.choice(_TOWNS)}
            for river in _RIVERS
        ]
        self.people: _Facts = [
            {"name": p, "trade": rng.choice(_TRADES), "born": rng.randint(1700, 1950)}
            for p in people
        ]
        texts = {t["name"]: _town(t) for t in self.towns}
        for river in self.rivers:
            texts[river["name"]] = (
                f"{river['name']} is a river of {river['length']} km. "
                f"It meets the sea at [[{river['mouth']}]]."
            )
        for p in self.people:
            texts[p["name"]] = f"{p['name']} was a {p['trade']}, born in {p['born']}."
        self.state = {"pages": texts, "edits": dict.fromkeys(texts, 0)}

    def answer(self, request: Request) -> Answer:
        pages = self.state["pages"]
        title = request.path[1].replace("_", " ") if len(request.path) == 2 else ""
        match request.path:
            case ():
                find = form(
                    "/search", "Search", "<label>Search <input name='q'></label>", method="get"
                )
                towns = ", ".join(_page_link(t["name"]) for t in self.towns)
                return Page("Main page", f"{find}<p>Varland has eight towns: {towns}.</p>")
            case ("all",):
                items = "".join(f"<li>{_page_link(name)}</li>" for name in sorted(pages))
                return Page("All pages", f"<ul>{items}</ul>")
            case ("search",):
                words = request.query.get("q", "").casefold()
                matches = "".join(
                    f"<p>{_page_link(name)}</p>"
                    for name in sorted(pages)
                    if words and words in f"{name} {pages[name]}".casefold()
                )
                return Page("Search", matches or "<p>Nothing was found.</p>")
            case ("page", _) if title in pages:
                text = _LINK.sub(lambda m: _page_link(unescape(m[1])), escape(pages[title]))
                edit = link(_path(title, "edit"), "Edit this page")
                return Page(title, f"<p>{text}</p><p>{edit}</p>")
            case ("edit", _) if title in pages and request.posted is not None:
                pages[title] = request.posted.get("text", "").strip()
                self.state["edits"][title] += 1
                return Redirect(_path(title))
            case ("edit", _) if title in pages:
                text = escape(pages[title])
                area = (
                    f"<p><label>Text <textarea name='text' rows='6'>{text}</textarea></label></p>"
                )
                return Page(f"Editing {title}", form(_path(title, "edit"), "Save", area))
            case ("new",) if request.posted is not None:
                return self._create(request.posted)
            case ("new",):
                return self._new("")
        return self.missing()

    def task_correct(self) -> WebTask:
        """Correct one number in a text; the rest must not change."""
        town = self.rng.choice(self.towns)
        name = town["name"]
        year = town["founded"] + self.rng.randint(2, 90)
        text = _town({**town, "founded": year})

        def correct(state: Any) -> None:
            state["pages"][name] = text
            state["edits"][name] += 1

        return WebTask(
            "correct",
            f"The page about {name} says that the town was founded in {town['founded']}. "
            f"It was in {year}: correct the number, in one edit, "
            "and leave the rest of the text as it is.",
            self.changed(correct),
            plan=(
                ("click", f"link '{name}'"),
                ("click", "link 'Edit this page'"),
                ("type", "textbox 'Text'", text),
                ("click", "button 'Save'"),
                ("stop", ""),
            ),
        )

    def task_create(self) -> WebTask:
        """Create a page."""
        person = self.rng.choice(
            [p for p in ("Lena Forss", "Otto Marsh", "Ines Calder") if p not in self.state["pages"]]
        )
        text = f"{person} was a {self.rng.choice(_TRADES)}, born in {self.rng.randint(1700, 1950)}."

        def create(state: Any) -> None:
            state["pages"][person] = text
            state["edits"][person] = 0

        return WebTask(
            "create",
            f'Make a new page with the title "{person}" and exactly this text: {text}',
            self.changed(create),
            plan=(
                ("click", "link 'New page'"),
                ("type", "textbox 'Title'", person),
                ("type", "textbox 'Text'", text),
                ("click", "button 'Create'"),
                ("stop", ""),
            ),
        )

    def task_follow_links(self) -> WebTask:
        """Ask a question whose answer is two pages away."""
        town = self.rng.choice(self.towns)
        name = town["name"]
        if self.rng.random() < 0.5:
            person = next(p for p in self.people if p["name"] == town["person"])
            question = f"In which year was the person born who {name} is known for?"
            answer, page = str(person["born"]), person["name"]
        else:
            river = next(r for r in self.rivers if r["name"] == town["river"])
            question = f"How many kilometres long is the river {name} lies on?"
            answer, page = str(river["length"]), river["name"]
        return WebTask(
            "follow_links",
            f"{question} Answer with the number alone.",
            self.changed(lambda state: None),
            answer=answer,
            plan=(("click", f"link '{name}'"), ("click", f"link '{page}'"), ("stop", answer)),
        )

    def _create(self, posted: Any) -> Answer:
        title, text = posted.get("title", "").strip(), posted.get("text", "").strip()
        if not title or not text or "/" in title or "_" in title or not title.strip("."):
            return self._new("A page needs a title, without / and _ and not only dots, and a text.")
        if title in self.state["pages"]:
            return self._new("There is a page of that title already.")
        self.state["pages"][title] = text
        self.state["edits"][title] = 0
        return Redirect(_path(title))

    def _new(self, problem: str) -> Page:
        fields = (
            "<p><label>Title <input name='title' required></label></p>",
            "<p><label>Text <textarea name='text' required></textarea></label></p>",
        )
        return Page("New page", f"<p>{problem}</p>{form('/new', 'Create', *fields)}")


def _town(town: Any) -> str:
    return (
        f"{town['name']} is a town on the [[{town['river']}]]. "
        f"It was founded in {town['founded']} and is known for [[{town['person']}]]."
    )


def _path(title: str, verb: str = "page") -> str:
    return f"/{verb}/{quote(title.replace(' ', '_'), safe='')}"


def _page_link(title: str) -> str:
    return link(_path(title), title)
