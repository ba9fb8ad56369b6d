"""Text browser: an environment that shows a page as numbered lines and acts on its elements."""

from __future__ import annotations

import re

from gem_core.arguments import whole_number
from gem_core.env.base import Env
from gem_core.errors import PolicyError
from gem_envs.web.browser import Browser, Tab
from gem_envs.web.page import Outline

__all__ = ["TextBrowser"]


class TextBrowser(Env):
    """Base class of the environments in Chromium. An observation shows at most `lines` lines."""

    execution = "thread"

    def __init__(self, lines: int = 60) -> None:
        self.lines = whole_number("lines", lines, 5)
        Browser.check()  # raise now if Chromium is missing
        self.first_line = 0
        self._tab: Tab | None = None

    def on_close(self) -> None:
        if self._tab is not None:
            self._tab.close()

    def sample_on_page(self) -> str:
        """Draw an action on an element of the page; "" if there is none."""
        rng, elements = self.action_rng, self.outline.elements
        usable = [(n, e) for n, e in enumerate(elements, 1) if not e.disabled]
        if not usable:
            return ""
        number, element = rng.choice(usable)
        if element.kind == "textbox":
            return f"type [{number}] [{rng.choice(('lamp', 'hello', '3'))}]"
        if element.kind == "combobox":
            return f"select [{number}] [{rng.choice(element.options)}]"
        return f"click [{number}]"

    @property
    def tab(self) -> Tab:
        assert self._tab is not None
        return self._tab

    def act_on(self, verb: str, number: int, text: str) -> str:
        """Click on, type into or select in an element; return what is wrong, or ""."""
        elements = self.outline.elements
        if not 1 <= number <= len(elements):
            return f"There is no element [{number}] on this page."
        element = elements[number - 1]
        if element.disabled:
            return f"The {element.kind} [{number}] is disabled."
        before = self.outline.path
        if verb == "type":
            if element.kind != "textbox":
                return f"[{number}] is a {element.kind}, not a field to type into."
            if obstacle := self.tab.obstacle(number, text):
                return f"The {element.kind} [{number}] {obstacle}."
            self.tab.fill(number, text)
        elif verb == "select":
            if element.kind != "combobox":
                return f"[{number}] is a {element.kind}, not a list to select from."
            option = text.strip()
            if option not in element.options:
                options = ", ".join(element.options)
                return f"[{number}] has no option {option[:80]!r}; it has: {options}."
            self.tab.select(number, element.options.index(option))
        else:
            if obstacle := self.tab.obstacle(number, None):
                return f"The {element.kind} [{number}] {obstacle}."
            self.tab.click(number)
        if self.read_page().path != before:
            self.first_line = 0
        return ""

    def look(self) -> str:
        """Read the page and return its visible lines."""
        self.outline: Outline = self.read_page()
        lines = self.outline.lines
        if self.first_line >= len(lines):
            self.first_line = 0
        shown = lines[self.first_line : self.first_line + self.lines]
        text = "\n".join([f"Page: {self.outline.title} ({self.shown_path()})", *shown])
        if len(shown) == len(lines):
            return text
        first, last = self.first_line + 1, self.first_line + len(shown)
        return f"{text}\n(lines {first} to {last} of {len(lines)}; scroll to see the others)"

    def read_page(self) -> Outline:
        """Return the page as text."""
        return self.tab.outline()

    def shown_path(self) -> str:
        """Return the path of the page as an observation shows it."""
        return self.outline.path

    def number_of(self, element: str, line: str) -> int:
        """Return the number of an element whose line contains a text."""
        pattern = re.compile(rf"\[(\d+)\] {re.escape(element)}")
        for text in self.outline.lines:
            match = pattern.search(text)
            if match and line in text:
                return int(match[1])
        raise PolicyError(f"the expert found no {element} on the page {self.outline.path}")
