"""Built-in wrappers, registered as an ordinary plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_core.plugins.hookspecs import hookimpl

__all__ = ["register_wrappers"]

_FORMATS = "gem_core.wrappers.formats"
_HISTORY = "gem_core.wrappers.history"


@hookimpl
def register_wrappers(register: Callable[..., Any]) -> None:
    """Register action formats, history modes, limits and statistics."""
    register(
        "boxed", f"{_FORMATS}:Boxed", kind="format", summary=r"the action is in the last \boxed{}"
    )
    register("react", f"{_FORMATS}:React", kind="format", summary="Thought: ... then Action: ...")
    register(
        "tool_call",
        f"{_FORMATS}:ToolCall",
        kind="format",
        summary="a JSON function call in <tool_call> tags",
    )
    register(
        "code",
        f"{_FORMATS}:Code",
        kind="format",
        summary="the action is the last fenced code block",
    )
    register("concat", f"{_HISTORY}:Concat", summary="all observations so far, as one text")
    register(
        "concat_with_action",
        f"{_HISTORY}:Concat",
        kwargs={"actions": True},
        summary="all observations and actions so far, as one text",
    )
    register(
        "concat_chat",
        f"{_HISTORY}:ConcatChat",
        summary="the conversation so far, with a window, without earlier suffixes",
    )
    register(
        "concat_chat_on_reset",
        f"{_HISTORY}:ConcatChatOnReset",
        summary="the chat template around the first prompt only",
    )
    register(
        "turn_limit",
        "gem_core.wrappers.limits:TurnLimit",
        summary="truncates after a number of turns",
    )
    register(
        "token_limit",
        "gem_core.wrappers.limits:TokenLimit",
        summary="truncates after a number of action tokens",
    )
    register(
        "statistics",
        "gem_core.wrappers.episode_statistics:Statistics",
        summary="return and turns of each episode in info",
    )
