"""MiniWoB++: one-page tasks from the package `miniwob`, in a real Chromium, as text.

    click [3]               type [4] [some text]      select [5] [an option]

The observation is the page's text, or its accessibility tree. At its own end, the page gives its
reward without the time penalty, and 0 for a failure. Time does not pass: the countdown of the page
is switched off.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem_core.arguments import whole_number
from gem_core.env.base import ResetResult, StepResult
from gem_core.errors import ConfigError, MissingDependencyError
from gem_envs.web.browser import Browser, Tab
from gem_envs.web.ids import MINIWOB_TASKS, TREE_TASKS
from gem_envs.web.miniwob_solvers import SOLVERS
from gem_envs.web.page import Outline
from gem_envs.web.text_browser import TextBrowser

__all__ = ["MiniWoB", "miniwob_folder"]

_OBSERVATIONS = ("text", "accessibility")
_ACTION = re.compile(r"(click|type|select)\s*\[(\d{1,6})\](?:\s*\[(.*)\])?", re.DOTALL)
_START = """() => {
    Math.seedrandom("%d");
    core.EPISODE_MAX_TIME = 1e9;
    core.startEpisodeReal();
    for (const id of ["reward-display", "click-canvas", "sync-task-cover"]) {
        const element = document.getElementById(id);
        if (element) element.style.display = "none";
    }
    return { query: document.getElementById("query").innerText };
}"""
_STATE = "() => ({ done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL })"


class MiniWoB(TextBrowser):
    """A MiniWoB++ task; the reward is the page's, at least 0.

    `task` is the name of a page, such as `click-button`. `observation` is "text", in which links,
    buttons and fields have numbers, or "accessibility": the accessibility tree, in which every node
    has one. Tasks that need drawing or dragging cannot be solved in either. `screenshots` puts a
    PNG of every page into `info["screenshot"]`, base64-encoded.
    """

    action_example = "type [1] [some text]"

    def __init__(
        self,
        task: str = "click-button",
        max_turns: int = 10,
        screenshots: bool = False,
        observation: str = "text",
    ) -> None:
        self.page = miniwob_folder() / f"{task}.html"
        if not re.fullmatch(r"[a-z0-9-]+", task) or not self.page.is_file():
            known = ", ".join(MINIWOB_TASKS)
            raise ConfigError(f"MiniWoB++ has no task {task!r}; tasks with an expert: {known}")
        if observation not in _OBSERVATIONS:
            raise ConfigError(
                f"observation must be one of {', '.join(_OBSERVATIONS)}; got {observation!r}"
            )
        super().__init__()
        self.task, self.screenshots, self.observation = task, screenshots, observation
        self.max_turns = whole_number("max_turns", max_turns, 1)

    def on_reset(self, options: Mapping[str, Any]) -> ResetResult:
        if self._tab is None:
            self._tab = Tab(Browser.shared())
        self.tab.open(self.page.as_uri())
        self.instruction = " ".join(self.tab.run(_START % self.seed)["query"].split())
        return (
            "You use a web page through a text browser. What you can act on has a number in front "
            "of it. One action per message: click [N], type [N] [text] into a field, "
            f"select [N] [option] of a list. You have {self.max_turns} turns.\n"
            f"Your task: {self.instruction}\n\n{self.look()}",
            {"instruction": self.instruction, **self._image()},
        )

    def on_step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip())
        problem = "That is not click [N], type [N] [text] or select [N] [option]."
        if match is not None and (match[1] == "click") == (match[3] is None):
            problem = self.act_on(match[1], int(match[2]), match[3] or "")
        state = self.tab.run(_STATE)
        if state["done"]:
            reward = max(0.0, float(state["reward"]))
            verdict = "The task is done." if reward == 1.0 else "The task is not done."
            return verdict, reward, True, False, {"success": reward == 1.0, **self._image()}
        observation = "\n\n".join([*([problem] if problem else []), self.look()])
        if self.turn + 1 >= self.max_turns:
            observation += f"\nThat was the last of {self.max_turns} turns."
            return observation, 0.0, False, True, {"success": False, **self._image()}
        info = {"action_failed": True} if problem else {}
        return observation, 0.0, False, False, {**info, **self._image()}

    def read_page(self) -> Outline:
        if self.observation == "accessibility":
            return self.tab.accessibility_outline()
        return super().read_page()

    def shown_path(self) -> str:
        return self.task

    def _image(self) -> dict[str, str]:
        if not self.screenshots:
            return {}
        return {"screenshot": base64.b64encode(self.tab.screenshot()).decode("ascii")}

    def sample_action(self) -> str:
        return self.sample_on_page() or "click [1]"

    def numbers_of(self, kind: str) -> list[int]:
        """Return the numbers of the elements of a kind, in the order of the page."""
        return [n for n, e in enumerate(self.outline.elements, 1) if e.kind == kind]

    @property
    def expert(self) -> Callable[[], Iterator[str]] | None:
        """The solver of the task, which reads what the agent reads; None if there is none."""
        solver = SOLVERS.get(self.task)
        reads = "accessibility" if self.task in TREE_TASKS else "text"
        if solver is None or self.observation != reads:
            return None
        return lambda: solver(self)


def miniwob_folder() -> Path:
    """Return the folder of the pages, without importing the package."""
    module = find_spec("miniwob")
    if module is None or not module.submodule_search_locations:
        raise MissingDependencyError("MiniWoB++", "miniwob", "No module named 'miniwob'")
    return Path(module.submodule_search_locations[0]) / "html" / "miniwob"
