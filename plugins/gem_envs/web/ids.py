"""Environment ids of MiniWoB++. Listing them starts no browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MINIWOB_TASKS", "TREE_TASKS", "register_miniwob"]

# As in AgentGym, the action is on its own line after a thought. Text without such a line is the
# action itself.
_REACT = (("react", {"place": "observation", "on_error": "pass"}),)

MINIWOB_TASKS = {
    "buy-ticket": "buy the cheapest or the shortest flight",
    "choose-list": "select an option of a list",
    "click-button": "click the button with a name",
    "click-button-sequence": "click two buttons in order",
    "click-checkboxes": "check the boxes with some names",
    "click-checkboxes-large": "check up to twelve boxes with some names",
    "click-checkboxes-transfer": "check the boxes with some names",
    "click-collapsible-2-nodelay": "open sections until a link appears, and click it",
    "click-dialog": "close a dialog",
    "click-dialog-2": "click a button of a dialog",
    "click-link": "click a link in a text",
    "click-option": "choose one of several options",
    "click-tab": "open a tab",
    "click-tab-2": "open tabs until a link appears, and click it",
    "click-test": "click a button",
    "click-test-2": "click one of two buttons",
    "click-test-transfer": "click one of two buttons",
    "copy-paste": "copy a text into a field",
    "copy-paste-2": "copy one of several texts into a field",
    "enter-password": "type a password twice",
    "enter-text": "type a text",
    "enter-text-2": "type a text in upper or lower case",
    "enter-text-dynamic": "type a text into a field that moves",
    "find-word": "type the n-th word of a text",
    "focus-text": "click into a field",
    "focus-text-2": "click into one of three fields",
    "form-sequence-2": "choose an option and fill a field",
    "generate-number": "draw numbers until one fits",
    "guess-number": "guess a number, with hints",
    "login-user": "type a name and a password",
    "odd-or-even": "mark three numbers as odd or even",
    "phone-book": "look through contacts for a person's data",
    "read-table": "look up a value in a table",
    "read-table-2": "look up two values in a table",
    "search-engine": "search and click the n-th result",
    "simple-algebra": "solve an equation",
    "simple-arithmetic": "solve a sum",
    "text-transform": "type a skewed text",
    "unicode-test": "click the button with a name in any script",
}
"""The tasks with an expert. `MiniWoB(task=...)` opens the other pages as well."""
TREE_TASKS = frozenset(
    {
        "click-collapsible-2-nodelay",
        "click-link",
        "click-tab-2",
        "phone-book",
    }
)
"""The tasks on plain text that is clickable: their ids show the accessibility tree."""


def register_miniwob(register: Callable[..., Any]) -> None:
    """Register the MiniWoB++ tasks with an expert."""
    for task, summary in MINIWOB_TASKS.items():
        turns = 15 if task == "click-checkboxes-large" else 10
        observation = "accessibility" if task in TREE_TASKS else "text"
        register(
            f"miniwob:{task}",
            "gem_envs.web.miniwob:MiniWoB",
            kwargs={"task": task, "max_turns": turns, "observation": observation},
            wrappers=_REACT,
            summary=f"{summary} on a web page, in Chromium",
            turns=turns,
            reward="terminal: the page's reward, 0 to 1",
            data="pages of the package miniwob; needs Chromium",
            extra="miniwob",
            tags=("web", "chromium"),
        )
