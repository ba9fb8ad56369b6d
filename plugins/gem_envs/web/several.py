"""Several: all sites on one server, with tasks that carry answers from one site to another."""

from __future__ import annotations

import random
from importlib import import_module
from typing import ClassVar

from gem_envs.web.site import Answer, Page, Redirect, Request, Site, WebTask, link

__all__ = ["SITES", "Several", "site_class"]

SITES = {
    "shop": "Shop",
    "forum": "Forum",
    "wiki": "Wiki",
    "admin": "Admin",
    "map": "Map",
    "repository": "Repository",
}
"""The module and the class of each site."""
_QUESTIONS = {
    "shop": ("price",),
    "forum": ("most_votes",),
    "wiki": ("follow_links",),
    "admin": ("count",),
    "map": ("nearest", "minutes"),
    "repository": ("last_commit", "open_bugs"),
}
_WRITABLE = ("forum", "map", "repository")


def site_class(name: str) -> type[Site]:
    """Return the class of a site."""
    found: type[Site] = getattr(import_module(f"gem_envs.web.{name}"), SITES[name])
    return found


class Several(Site):
    """The sites under the path of their name; the state is theirs, by name."""

    title = "All Sites"
    menu = ()
    kinds: ClassVar = ("one_answer", "two_answers")

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.sites = {name: site_class(name)(rng) for name in SITES}
        self.state = {name: site.state for name, site in self.sites.items()}

    def answer(self, request: Request) -> Answer:
        if request.path == ():
            links = "".join(
                f"<li>{link(f'/{name}', site.title)}</li>" for name, site in self.sites.items()
            )
            return Page("Sites", f"<ul>{links}</ul>")
        name, *path = request.path
        if name not in self.sites:
            return self.missing()
        site = self.sites[name]
        answer = site.answer(Request(tuple(path), request.query, request.posted))
        if isinstance(answer, Redirect):
            return Redirect(f"/{name}{answer.path}")
        document = site.render(answer)
        # text in pages is escaped, so these are the attributes of links and forms
        for attribute in ("href", "action"):
            document = document.replace(f" {attribute}='/", f" {attribute}='/{name}/")
        return _Document(answer.title, document, answer.status)

    def render(self, page: Page) -> str:
        if not isinstance(page, _Document):
            return super().render(page)
        return page.body.replace("<nav>", f"<nav>{link('/', 'All sites')} ", 1)

    def task_one_answer(self) -> WebTask:
        """Write the answer of one site on another."""
        return self._carry(1)

    def task_two_answers(self) -> WebTask:
        """Write the answers of two sites on a third."""
        return self._carry(2)

    def _carry(self, count: int) -> WebTask:
        goal = self.rng.choice(_WRITABLE)
        sources = self.rng.sample([name for name in SITES if name != goal], count)
        questions = [self.sites[name].draw(self.rng.choice(_QUESTIONS[name])) for name in sources]
        text = ", ".join(str(question.answer) for question in questions)
        said = "the answer and nothing else."
        if count > 1:
            said = 'the answers, in this order, separated by ", ", and nothing else.'
        written = self.sites[goal].write(text, said)
        asked = " ".join(
            f"On the site {self.sites[name].title}: {question.instruction}"
            for name, question in zip(sources, questions, strict=True)
        )
        steps: list[tuple[str, ...]] = []
        for name, task in zip([*sources, goal], [*questions, written], strict=True):
            back = [("click", "link 'All sites'")] if steps else []
            steps += [*back, ("click", f"link '{self.sites[name].title}'"), *task.plan[:-1]]
        return WebTask(
            self.kinds[count - 1],
            f"{asked} Then, on the site {self.sites[goal].title}: {written.instruction}",
            self.changed(lambda state: state.update({goal: written.goal})),
            plan=(*steps, ("stop", "")),
        )


class _Document(Page):
    """A page that is already a whole document."""
