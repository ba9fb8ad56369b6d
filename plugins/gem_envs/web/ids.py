"""Environment ids of MiniWoB++. Listing them starts no browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MINIWOB_TASKS", "register_miniwob"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

MINIWOB_TASKS = {
    "choose-list": "select an option of a list",
    "click-button": "click the button with a name",
    "click-button-sequence": "click two buttons in order",
    "click-checkboxes": "check the boxes with some names",
    "click-option": "choose one of several options",
    "click-test": "click a button",
    "click-test-2": "click one of two buttons",
    "enter-password": "type a password twice",
    "enter-text": "type a text",
    "enter-text-dynamic": "type a text into a field that moves",
    "focus-text": "click into a field",
    "login-user": "type a name and a password",
}
"""The tasks with an expert. `MiniWoB(task=...)` opens the other pages as well."""


def register_miniwob(register: Callable[..., Any]) -> None:
    """Register the MiniWoB++ tasks with an expert."""
    for task, summary in MINIWOB_TASKS.items():
        register(
            f"miniwob:{task}",
            "gem_envs.web.miniwob:MiniWoB",
            kwargs={"task": task, "max_turns": 10},
            wrappers=_REACT,
            summary=f"{summary} on a web page, in Chromium",
            turns=10,
            reward="terminal: the page's reward, 0 to 1",
            data="pages of the package miniwob; needs Chromium",
            extra="miniwob",
            tags=("web", "chromium"),
        )
