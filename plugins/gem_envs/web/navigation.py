"""Web navigation: tasks on multi-page sites in a real Chromium, with text pages and text actions.

    click [3]               type [4] [some text]      select [5] [an option]      goto [/cart]
    back                    scroll [down]             stop [the answer]

The reward is 1 if the site ends in exactly the state the task requires and, when the task asks a
question, the answer is correct; else 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import Env, ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError, PolicyError
from gem_envs.datasets.qa import exact_match
from gem_envs.web.browser import Browser, Outline, Tab
from gem_envs.web.site import Loopback, Site, WebTask

__all__ = ["SITES", "WebNavigation"]

SITES = {"shop": "Shop", "forum": "Forum", "wiki": "Wiki", "admin": "Admin"}
"""The module and the class of each site."""

_ACTION = re.compile(r"(click|type|select|goto|back|scroll|stop)\b\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"\[(\d{1,6})\]")
_NUMBER_AND_TEXT = re.compile(r"\[(\d{1,6})\]\s*\[(.*)\]", re.DOTALL)
_TEXT = re.compile(r"\[(.*)\]", re.DOTALL)
_FORMS = (
    "click [N], type [N] [text], select [N] [option], goto [/path], back, "
    "scroll [down], scroll [up], stop [answer]"
)


class WebNavigation(Env):
    """A task on a site. An impossible action costs a turn, and the observation gives the reason.

    The option `site` selects the site, and `task` one of its kinds of tasks.
    """

    execution = "thread"
    option_names = frozenset({"site", "task"})
    action_example = "click [3]"

    def __init__(self, site: str | None = None, max_turns: int = 20, lines: int = 60) -> None:
        """Create the environment.

        `site` is the name of a site; None draws one in every episode. An observation shows at most
        `lines` lines of a page.
        """
        self.site_name = None if site is None else _checked_site(site, ConfigError)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        self.lines = whole_number("lines", lines, 5)
        Browser.check()  # raise now if Chromium is missing
        self._loopback: Loopback | None = None
        self._tab: Tab | None = None

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        name = options.get("site")
        if name is None:
            name = self.site_name or self.rng.choice(tuple(SITES))
        else:
            name = _checked_site(name, OptionError)
        kind = self._build(name, options.get("task"))
        if self._loopback is None:
            self._loopback, self._tab = Loopback(), Tab(Browser.shared())
        self._loopback.site = self.site
        self.first_line = 0
        self.tab.open(self._loopback.url)
        rules = (
            f'You use the web site "{self.site.title}" through a text browser. '
            f"Your task: {self.task.instruction}\n"
            "What you can act on has a number in front of it. One action per message: "
            "click [N], type [N] [text] into a field (in place of what is there), "
            "select [N] [option] of a list, goto [/path], back, "
            "scroll [down] or scroll [up] on a long page, "
            "and stop [answer] when you are done; without a question to answer, stop []. "
            f"You have {self.max_turns} turns."
        )
        return f"{rules}\n\n{self._look()}", {"site": name, "task": kind}

    def on_step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip())
        verb, rest = (match[1], match[2].strip()) if match else ("", "")
        if verb == "stop":
            text = _TEXT.fullmatch(rest)
            return self._score(text[1] if text else rest, truncated=False)
        problem = self._do(verb, rest)
        notes = [problem] if problem else []
        notes += [f'The page asked: "{message}" You answered OK.' for message in self.tab.dialogs]
        self.tab.dialogs.clear()
        observation = "\n\n".join([*notes, self._look()])
        if self.turn + 1 >= self.max_turns:
            verdict, reward, _, truncated, info = self._score("", truncated=True)
            observation = f"That was the last of {self.max_turns} turns. {verdict}"
            return observation, reward, False, truncated, info
        return observation, 0.0, False, False, {"action_failed": True} if problem else {}

    def on_close(self) -> None:
        if self._tab is not None:
            self._tab.close()
        if self._loopback is not None:
            self._loopback.close()

    def sample_action(self) -> str:
        """Draw an action on an element of the page."""
        rng, elements = self.action_rng, self.outline.elements
        usable = [(n, e) for n, e in enumerate(elements, 1) if not e.disabled]
        if not usable or rng.random() < 0.1:
            return rng.choice(("back", "scroll [down]", "scroll [up]", "goto [/]"))
        number, element = rng.choice(usable)
        if element.kind == "textbox":
            return f"type [{number}] [{rng.choice(('lamp', 'hello', '3'))}]"
        if element.kind == "combobox":
            return f"select [{number}] [{rng.choice(element.options)}]"
        return f"click [{number}]"

    def expert(self) -> Iterator[str]:
        """Follow the task's plan, with the current number of each element."""
        for verb, *rest in self.task.plan:
            if verb == "stop":
                yield f"stop [{rest[0]}]"
                continue
            element, argument, line = (*rest, "", "")[:3]
            number = self._number(element, line)
            yield f"{verb} [{number}]" if verb == "click" else f"{verb} [{number}] [{argument}]"

    @property
    def tab(self) -> Tab:
        assert self._tab is not None
        return self._tab

    def _build(self, name: str, kind: object) -> str:
        site: type[Site] = getattr(import_module(f"gem_envs.web.{name}"), SITES[name])
        if kind is not None and kind not in site.kinds:
            raise OptionError(
                f"task must be one of {', '.join(site.kinds)} on the site {name!r}; got {kind!r}"
            )
        self.site: Site = site(self.rng)
        self.task: WebTask = self.site.draw(None if kind is None else str(kind))
        return self.task.kind

    def _do(self, verb: str, rest: str) -> str:
        """Run an action; return what is wrong with it, or ""."""
        assert self._loopback is not None
        if verb in ("click", "type", "select"):
            match = (_NUMBER if verb == "click" else _NUMBER_AND_TEXT).fullmatch(rest)
            if not match:
                return f"That is no action. The actions: {_FORMS}."
            return self._act(verb, int(match[1]), "" if verb == "click" else match[2])
        if verb == "goto":
            path = _TEXT.fullmatch(rest)
            if not path or not re.fullmatch(r"/[\x21-\x7e]*", path[1]) or path[1].startswith("//"):
                return "goto takes a path of this site, as in goto [/]."
            self.tab.goto(self._loopback.url + path[1])
        elif verb == "back" and not rest:
            before = self.outline.path
            self.tab.back()
            if not self.tab.outline().path.startswith("/"):  # the blank page before the first one
                self.tab.goto(self._loopback.url + before)
                return "There is no page to go back to."
        elif verb == "scroll" and rest.strip("[] ") in ("down", "up"):
            step = self.lines if "down" in rest else -self.lines
            self.first_line = max(0, min(self.first_line + step, len(self.outline.lines) - 1))
            return ""
        else:
            return f"That is no action. The actions: {_FORMS}."
        self.first_line = 0
        return ""

    def _act(self, verb: str, number: int, text: str) -> str:
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
            self.tab.click(number)
        if self.tab.outline().path != before:
            self.first_line = 0
        return ""

    def _look(self) -> str:
        """Read the page and return its visible lines."""
        self.outline: Outline = self.tab.outline()
        lines = self.outline.lines
        if self.first_line >= len(lines):
            self.first_line = 0
        shown = lines[self.first_line : self.first_line + self.lines]
        text = "\n".join([f"Page: {self.outline.title} ({self.outline.path})", *shown])
        if len(shown) == len(lines):
            return text
        first, last = self.first_line + 1, self.first_line + len(shown)
        return f"{text}\n(lines {first} to {last} of {len(lines)}; scroll to see the others)"

    def _number(self, element: str, line: str) -> int:
        """Return the number of an element whose line contains a text."""
        pattern = re.compile(rf"\[(\d+)\] {re.escape(element)}")
        for text in self.outline.lines:
            match = pattern.search(text)
            if match and line in text:
                return int(match[1])
        raise PolicyError(f"the expert found no {element} on the page {self.outline.path}")

    def _score(self, answer: str, truncated: bool) -> StepResult:
        correct = self.task.answer is None or bool(exact_match(answer, self.task.answer))
        solved = correct and self.site.state == self.task.goal
        verdict = "The task is done." if solved else "The task is not done."
        return verdict, float(solved), not truncated, truncated, {"success": solved}


def _checked_site(site: object, error: type[ConfigError | OptionError]) -> str:
    if site in SITES:
        return str(site)
    raise error(f"site must be one of {', '.join(SITES)}; got {site!r}")
