"""Thinking that the generation prompt opens: the sampled text has only its end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from scripted_env import ScriptedEnv

from gem_core import Env, Renderer, Rollout, ScriptedPolicy, Task
from gem_tools.tool import Tool, ToolResult
from gem_tools.wrapper import ToolWrapper

CALLS = {
    "tag": "<echo>1</echo>",
    "json": '<tool_call>{"name": "echo", "arguments": {"text": "1"}}</tool_call>',
    "native": '<tool_call>{"name": "echo", "arguments": {"text": "1"}}</tool_call>',
}


class Reasoning(ByteTokenizer):
    """Opens the thinking in the generation prompt, as DeepSeek-R1's template does."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> str:  # type: ignore[override]
        opened = "<think>\n" if kwargs.get("add_generation_prompt") else ""
        return super().apply_chat_template(conversation, **kwargs) + opened


class Echo(Tool):
    name, main_argument = "echo", "text"
    parameters: Mapping[str, Any] = MappingProxyType(
        {"type": "object", "properties": {"text": {"type": "string"}}}
    )

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        return ToolResult(str(arguments["text"]))


@pytest.mark.parametrize("style", CALLS)
def test_a_tool_call_inside_the_opened_thinking_is_not_run(style: Any) -> None:
    env = ScriptedEnv()

    def make_env(task: Task) -> Env:
        return ToolWrapper(env, [Echo()], style=style)

    tokenizer, call = Reasoning(), CALLS[style]
    script = [f"{call}? no</think> 3", f"yes</think> {call}", "hm</think> 4", "so</think> 5"]
    policy = ScriptedPolicy(script, tokenizer)
    with Rollout(policy, Renderer(tokenizer), make_env=make_env) as rollout:
        (episode,) = rollout.run_batch([Task("test:Scripted-v0", seed=1)])
    assert not episode.failed, episode.failure
    assert [turn.info["use_tool"] for turn in episode.turns] == [False, True, False, False]
    assert [turn.action for turn in episode.turns] == [f"<think>\n{line}" for line in script]
    assert env.log[2] == f"step <think>\n{script[0]}"
