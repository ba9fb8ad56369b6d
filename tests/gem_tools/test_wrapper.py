"""Tests of the tool wrapper and of tool registration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from tool_worlds import Quiz

from gem_core.env.base import Env
from gem_core.env.registry import make
from gem_core.env.wrapper_stack import wrappers
from gem_core.errors import ConfigError, RegistrationError, UnknownNameError
from gem_core.plugins.manager import hookimpl, register_plugin, unregister_plugin
from gem_core.policies.scripted import ScriptedPlayer
from gem_core.rollout.engine import Rollout, run_episode
from gem_core.rollout.limits import Limits
from gem_core.types import StopReason, Task
from gem_core.wrappers.formats import Boxed, ToolCall
from gem_tools import Tool, ToolError, ToolResult, Toolset, make_tool, register_tool, tools
from gem_tools.wrapper import ToolWrapper


class Echo(Tool):
    """A tool that repeats its argument, counts calls, and fails, raises or sleeps on request."""

    main_argument, example = "text", "hello"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }

    def __init__(self, name: str = "echo") -> None:
        self.name, self.description = name, f"Says it as {name}."

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        text, count = arguments["text"], (state or 0) + 1
        if text == "break":
            raise ToolError("the echo is broken")
        if text.startswith("sleep"):
            time.sleep(float(text[5:]))
        return ToolResult(
            f"{self.name} {text} {count}", error=text == "fail", state=count, info={"count": count}
        )


class AsyncEcho(Echo):
    async def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:  # type: ignore[override]
        await asyncio.sleep(
            float(arguments["text"][5:]) if arguments["text"].startswith("sleep") else 0
        )
        return ToolResult(f"{self.name} {arguments['text']}")


def quiz(**settings: Any) -> ToolWrapper:
    return ToolWrapper(Quiz(), settings.pop("tools", [Echo()]), **settings)


def test_tool_turn_does_not_step_the_environment() -> None:
    env = quiz(use_reward=0.1, success_reward=0.2, error_reward=-0.5)
    _, info = env.reset(seed=1)
    assert "<echo>hello</echo>\nSays it as echo." in info["system"]
    assert info["tools"][0]["function"]["name"] == "echo"
    observation, reward, terminated, truncated, info = env.step("Hm. <echo>hi</echo>")
    assert (observation, terminated, truncated) == ("echo hi 1", False, False)
    assert reward == pytest.approx(0.3)
    assert (info["role"], info["parsed_action"]) == ("tool", "hi")
    assert (info["use_tool"], info["tool_error"]) == (True, False)
    details = {"name": "echo", "id": "", "error": False, "outage": False, "count": 1}
    assert info["tool_calls"] == [details]
    observation, reward, *_, info = env.step("<echo>fail</echo>")
    assert (observation, info["tool_error"]) == ("echo fail 2", True)
    assert reward == pytest.approx(-0.4)
    assert (env.turn, env.unwrapped.turn) == (2, 0)
    observation, reward, terminated, _, info = env.step("4")
    assert (observation, reward, terminated) == ("Right.", 1.0, True)
    assert "role" not in info and info["use_tool"] is False
    assert (info["tool_uses"], info["tool_successes"], info["tool_errors"]) == (2, 1, 1)


def test_all_results_are_shown_when_one_of_several_calls_fails() -> None:
    env = quiz(tools=[Echo("one"), Echo("two")], success_reward=1.0, error_reward=-0.25)
    env.reset(seed=1)
    observation, reward, _, _, info = env.step(
        "<one>fail</one> <two>b</two> <three>c</three> <one>d</one>"
    )
    assert observation == "[one]\none fail 1\n[two]\ntwo b 1\n[one]\none d 2"
    assert reward == 1.75
    assert [(c["name"], c["error"]) for c in info["tool_calls"]] == [
        ("one", True),
        ("two", False),
        ("one", False),
    ]
    assert env.unwrapped.turn == 0


def test_calls_over_budget_are_refused_and_then_truncate_the_episode() -> None:
    env = quiz(max_uses=2, refusals=1, use_reward=1.0, error_reward=-1.0)
    _, info = env.reset(seed=1)
    assert "You may make 2 tool calls in all." in info["system"]
    assert "last of" not in env.step("<echo>a</echo>")[0]
    observation, reward, *_ = env.step("<echo>b</echo><echo>c</echo>")
    assert observation == (
        "[echo]\necho b 2\nNo tool calls are left: all 2 were made, and this was not run. "
        "Answer without tools."
    )
    assert reward == 0.0  # one use, one refusal
    observation, reward, terminated, truncated, info = env.step("<echo>d</echo>")
    assert (reward, terminated, truncated) == (-1.0, False, True)
    assert (info["success"], info["tool_uses"]) == (False, 2)
    assert observation.endswith("Answer without tools.\nThe episode ends here.")
    env.reset(seed=1)
    env.step("<echo>a</echo>")
    last = "echo b 2\nThat was the last of 2 tool calls. Answer without tools now."
    assert env.step("<echo>b</echo>")[0] == last
    assert env.step("4")[1] == 1.0


def test_invalid_call_is_answered_and_does_not_reach_the_environment() -> None:
    env = quiz(style="json")
    env.reset(seed=1)
    for text, problem in [
        (
            '<tool_call>{"name": "ehco"}</tool_call>',
            "There is no tool 'ehco'. The tools are: echo.",
        ),
        ('<tool_call>{"name": "echo"}</tool_call>', "echo needs the argument(s) text."),
        (
            '<tool_call>{"name": "echo", "arguments": {"text": 1}}</tool_call>',
            "text of echo must be string, not 1.",
        ),
        ("<tool_call>echo</tool_call>", "not a JSON object"),
    ]:
        observation, *_, info = env.step(text)
        assert problem in observation
        assert info["tool_error"]
    assert env.unwrapped.turn == 0


def test_function_call_of_the_action_format_reaches_the_environment() -> None:
    env = ToolWrapper(ToolCall(Quiz()), [Echo()], style="json")
    env.reset(seed=1)
    echo = '<tool_call>{"name": "echo", "arguments": {"text": "a"}}</tool_call>'
    act = '<tool_call>{"name": "act", "arguments": {"action": "4"}}</tool_call>'
    assert env.step(echo)[0] == "echo a 1"
    assert env.step(act)[1] == 1.0


def test_spawned_wrapper_shares_tools_but_not_counts() -> None:
    env = quiz(max_uses=2)
    env.reset(seed=1)
    env.step("<echo>a</echo>")
    twin = env.spawn()
    twin.reset(seed=1)
    assert env.step("<echo>b</echo>")[0].startswith("echo b 2\nThat was the last")
    assert twin.step("<echo>x</echo>")[0] == "echo x 1"
    assert twin.step("4")[4]["tool_uses"] == 1
    assert twin.sources == env.sources


def test_reset_clears_counts_and_states() -> None:
    env = quiz(max_uses=1)
    for _ in range(2):
        env.reset(seed=1)
        assert env.step("<echo>a</echo>")[0].startswith("echo a 1")


def test_broken_tool_fails_the_episode_or_tells_the_model() -> None:
    player = ScriptedPlayer(
        lambda env, observation: "<echo>break</echo>" if "?" in observation else "4"
    )
    episode = run_episode(quiz(), player, seed=1)
    assert episode.stop is StopReason.ENV_ERROR
    assert "the echo is broken" in str(episode.failure)
    episode = run_episode(quiz(on_outage="tell"), player, seed=1)
    assert episode.turns[0].info["tool_calls"][0]["outage"]
    assert episode.total_reward == 1.0


@pytest.mark.parametrize("tool", [Echo(), AsyncEcho()], ids=["blocking", "async"])
def test_calls_of_many_episodes_run_concurrently_with_deadlines(tool: Tool) -> None:
    def act(env: Env, observation: str) -> str:
        return f"<echo>sleep{30 if env.seed == 7 else 0.6}</echo>" if "?" in observation else "4"

    engine = Rollout(
        ScriptedPlayer(act),
        make_env=lambda task: ToolWrapper(Quiz(), [tool], deadline=3.0),
        concurrency=32,
    )
    begin = time.monotonic()
    episodes = engine.run_batch([Task("quiz", seed) for seed in range(32)])
    assert time.monotonic() - begin < 18.0  # sequential: 21.6 s; without the deadline: 30 s
    assert [e.total_reward for e in episodes] == [1.0] * 32
    assert [e.seed for e in episodes if e.turns[0].info["tool_error"]] == [7]
    assert "given up after 3 s" in episodes[7].turns[1].messages[0].content
    assert {t.messages[0].role for e in episodes for t in e.turns[1:]} == {"tool"}


def test_async_tool_makes_a_step_awaitable() -> None:
    env = ToolWrapper(Quiz(), [AsyncEcho()])
    env.reset(seed=1)
    stepping: Any = env.step("<echo>a</echo>")
    assert asyncio.run(_awaited(stepping))[0] == "echo a"
    assert env.step("4")[1] == 1.0


async def _awaited(value: Any) -> Any:
    return await value


class Two(Toolset):
    def __init__(self, names: tuple[str, ...] = ("one", "two")) -> None:
        self.names, self.log = names, list[str]()

    def begin(self) -> None:
        self.log.append("begin")

    def tools(self) -> list[Tool]:
        self.log.append("tools")
        return [Echo(name) for name in self.names]

    def close(self) -> None:
        self.log.append("close")


class Misspelt(Echo):
    main_argument = "texts"


class Plain(Tool):
    """A tool that declares no arguments."""

    name, main_argument = "plain", "text"

    def call(self, arguments: Mapping[str, Any], state: Any = None) -> ToolResult:
        return ToolResult(f"got {arguments['text']}")


def test_tool_without_declared_arguments_gets_its_main_argument() -> None:
    env = ToolWrapper(Quiz(), [Plain()])
    env.reset(seed=1)
    assert env.step("<plain>hi</plain>")[0] == "got hi"


def test_toolset_is_listed_once_and_begun_at_each_reset() -> None:
    toolset = Two()
    env = ToolWrapper(Quiz(), [toolset, Echo()])
    for _ in range(2):
        env.reset(seed=1)
        assert env.step("<two>a</two>")[0] == "two a 1"
    env.close()
    assert toolset.log == ["begin", "tools", "begin", "close"]
    with pytest.raises(ConfigError, match="two tools have the name 'echo'"):
        ToolWrapper(Quiz(), [Two(("echo",)), Echo()]).reset(seed=1)
    with pytest.raises(ConfigError, match="the tool Echo has the name ''"):
        ToolWrapper(Quiz(), [Two(("",))]).reset(seed=1)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"style": "yaml"}, "style"),
        ({"max_uses": -1}, "max_uses"),
        ({"max_uses": True}, "max_uses"),
        ({"refusals": -1}, "refusals"),
        ({"place": "top"}, "place"),
        ({"on_outage": "ignore"}, "on_outage"),
        ({"tools": []}, "non-empty list"),
        ({"tools": "echo"}, "non-empty list"),
        ({"tools": [3]}, "expected a Tool"),
        ({"tools": [Echo("")]}, "the tool Echo has the name ''"),
        ({"tools": [Two(), Tool()]}, "the tool Tool has the name ''"),
        ({"tools": [Misspelt()]}, "main_argument='texts', .* properties: text;"),
        ({"deadline": -1}, "deadline must be a positive number, got -1"),
        ({"deadline": float("nan")}, "deadline must be a positive number, got nan"),
        ({"deadline": "x"}, "deadline must be a positive number, got 'x'"),
        ({"use_reward": "x"}, "use_reward must be a finite number, got 'x'"),
        ({"success_reward": float("nan")}, "success_reward must be a finite number, got nan"),
        ({"error_reward": 10**400}, "error_reward must be a finite number, got 1000"),
        ({"error_reward": True}, "error_reward must be a finite number, got True"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        quiz(**settings)


@pytest.fixture
def registered() -> Any:
    register_tool("echo", Echo, summary="says it again")
    register_tool("shout", Echo, kwargs={"name": "shout"})
    yield
    for name in ("echo", "shout"):
        tools.remove(name)
        wrappers.remove(name)


@pytest.mark.usefixtures("registered")
def test_registered_tools_are_wrappers_that_share_one_budget() -> None:
    env = make(
        "game:GuessTheNumber-v0-easy",
        wrappers=["react", "echo(max_uses=2)", "shout", "concat_chat"],
    )
    _, info = env.reset(seed=1)
    system = info["system"]
    assert "Thought: your reasoning" in system
    assert system.index("Action:") < system.index("<echo>") < system.index("<shout>")
    observation = env.step("<shout>a</shout><echo>b</echo>")[0]
    assert observation.endswith("That was the last of 2 tool calls. Answer without tools now.")
    assert env.step("Action: 5")[4]["parsed_action"] == "5"
    assert wrappers.get("echo").kind == "tool"
    with pytest.raises(ConfigError, match="max_uses=2 and max_uses=3"):
        make("game:GuessTheNumber-v0-easy", wrappers=["echo(max_uses=2)", "shout(max_uses=3)"])


@pytest.mark.usefixtures("registered")
def test_register_and_make_errors_name_the_problem() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'echo'"):
        make_tool("ecoh")
    with pytest.raises(ConfigError, match="it takes: name"):
        make_tool("echo", volume=3)
    with pytest.raises(ConfigError, match=r"mean 'place' instead of 'plce'.* takes: style, place"):
        make("game:GuessTheNumber-v0-easy", wrappers=["echo(plce='system')"])
    with pytest.raises(ConfigError, match="deadline must be a positive number"):
        make("game:GuessTheNumber-v0-easy", wrappers=["echo(deadline=-1)"])
    with pytest.raises(RegistrationError, match="already registered"):
        register_tool("echo", Echo)
    with pytest.raises(RegistrationError, match="must be callable"):
        register_tool("other", "nonsense")


def test_plugin_registers_tools() -> None:
    class Plugin:
        @hookimpl
        def register_tools(self, register: Any) -> None:
            register("parrot", Echo, kwargs={"name": "parrot"}, summary="a parrot")

    register_plugin(Plugin(), "parrots")
    try:
        env = make("game:GuessTheNumber-v0-easy", wrappers=["parrot"])
        env.reset(seed=1)
        assert env.step("<parrot>hello</parrot>")[0] == "parrot hello 1"
        assert tools.get("parrot").summary == "a parrot"
    finally:
        unregister_plugin("parrots")
        tools.remove("parrot")
        wrappers.remove("parrot")


def test_tool_turns_count_towards_the_turn_limit() -> None:
    player = ScriptedPlayer(lambda env, observation: "<echo>again</echo>")
    episode = run_episode(Boxed(Quiz()), player, seed=1, limits=Limits(max_turns=3))
    assert episode.stop is StopReason.TERMINATED  # without tools, an answer without a box
    episode = run_episode(quiz(max_uses=None), player, seed=1, limits=Limits(max_turns=3))
    assert episode.stop is StopReason.TURN_LIMIT
    assert (len(episode.turns), episode.total_reward) == (3, 0.0)


def test_previous_counts_are_in_the_info_of_a_reset() -> None:
    env = ToolWrapper(Quiz(), [Echo()], previous=True)
    assert env.reset(seed=1)[1]["previous_tool_uses"] == 0
    env.step("<echo>a</echo>")
    env.step("<echo>b</echo>")
    info = env.reset(seed=1)[1]
    assert (info["previous_tool_uses"], info["previous_tool_successes"]) == (2, 2)
    assert "previous_tool_uses" not in ToolWrapper(Quiz(), [Echo()]).reset(seed=1)[1]
