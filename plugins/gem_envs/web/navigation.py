"""Web navigation: tasks on multi-page sites in a real Chromium, with text pages and text actions.

    click [3]               type [4] [some text]      select [5] [an option]      goto [/cart]
    back                    scroll [down]             stop [the answer]

The reward is 1 if the site ends in exactly the state the task requires and, when the task asks a
question, the answer is correct; else 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, OptionError
from gem_envs.datasets.qa import exact_match
from gem_envs.web.browser import Browser, Tab
from gem_envs.web.several import SITES, Several, site_class
from gem_envs.web.site import Loopback, Site, WebTask
from gem_envs.web.text_browser import TextBrowser

__all__ = ["WebNavigation"]

_SEVERAL = "several"

_ACTION = re.compile(r"(click|type|select|goto|back|scroll|stop)\b\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"\[(\d{1,6})\]")
_NUMBER_AND_TEXT = re.compile(r"\[(\d{1,6})\]\s*\[(.*)\]", re.DOTALL)
_TEXT = re.compile(r"\[(.*)\]", re.DOTALL)
_FORMS = (
    "click [N], type [N] [text], select [N] [option], goto [/path], back, "
    "scroll [down], scroll [up], stop [answer]"
)


class WebNavigation(TextBrowser):
    """A task on a site. An impossible action costs a turn, and the observation gives the reason.

    The option `site` selects the site, and `task` one of its kinds of tasks.
    """

    option_names = frozenset({"site", "task"})
    action_example = "click [3]"

    def __init__(self, site: str | None = None, max_turns: int = 20, lines: int = 60) -> None:
        """Create the environment.

        `site` is the name of a site, or "several" for tasks across all of them; None draws one in
        every episode. An observation shows at most `lines` lines of a page.
        """
        self.site_name = None if site is None else _checked_site(site, ConfigError)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        super().__init__(lines)
        self._loopback: Loopback | None = None

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        name = options.get("site")
        if name is None:
            name = self.site_name or self.rng.choice(tuple(SITES))
        else:
            name = _checked_site(name, OptionError)
        kind = self._build(name, options.get("task"))
        if self._loopback is None:
            self._loopback = Loopback()
        if self._tab is None:
            self._tab = Tab(Browser.shared())
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
        return f"{rules}\n\n{self.look()}", {"site": name, "task": kind}

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
        observation = "\n\n".join([*notes, self.look()])
        if self.turn + 1 >= self.max_turns:
            verdict, reward, _, truncated, info = self._score("", truncated=True)
            observation = f"That was the last of {self.max_turns} turns. {verdict}"
            return observation, reward, False, truncated, info
        return observation, 0.0, False, False, {"action_failed": True} if problem else {}

    def on_close(self) -> None:
        super().on_close()
        loopback, self._loopback = self._loopback, None  # `reset` creates a new one
        if loopback is not None:
            loopback.close()

    def sample_action(self) -> str:
        """Draw an action on an element of the page, or another one."""
        action = self.sample_on_page()
        if not action or self.action_rng.random() < 0.1:
            return self.action_rng.choice(("back", "scroll [down]", "scroll [up]", "goto [/]"))
        return action

    def expert(self) -> Iterator[str]:
        """Follow the task's plan, with the current number of each element."""
        for verb, *rest in self.task.plan:
            if verb == "stop":
                yield f"stop [{rest[0]}]"
                continue
            element, argument, line = (*rest, "", "")[:3]
            number = self.number_of(element, line)
            yield f"{verb} [{number}]" if verb == "click" else f"{verb} [{number}] [{argument}]"

    def _build(self, name: str, kind: object) -> str:
        site = Several if name == _SEVERAL else site_class(name)
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
            return self.act_on(verb, int(match[1]), "" if verb == "click" else match[2])
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

    def _score(self, answer: str, truncated: bool) -> StepResult:
        correct = self.task.answer is None or bool(exact_match(answer, self.task.answer))
        solved = correct and self.site.state == self.task.goal
        verdict = "The task is done." if solved else "The task is not done."
        return verdict, float(solved), not truncated, truncated, {"success": solved}


def _checked_site(site: object, error: type[ConfigError | OptionError]) -> str:
    if site in (*SITES, _SEVERAL):
        return str(site)
    raise error(f"site must be one of {', '.join(SITES)} or {_SEVERAL!r}; got {site!r}")
