"""Tests of the built-in wrappers: history, action formats, limits and statistics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_env import AsyncEnv, ScriptedEnv

from gem_core import Context, Env, Message, make
from gem_core.env.action_format import ActionFormat
from gem_core.errors import ConfigError
from gem_core.wrappers.episode_statistics import Statistics
from gem_core.wrappers.formats import Boxed, Code, React, ToolCall, last_boxed
from gem_core.wrappers.history import Concat, ConcatChat, ConcatChatOnReset
from gem_core.wrappers.limits import TokenLimit, TurnLimit


def result_of(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if isawaitable(value) else value


def env_with(
    suffix: str = "", system: str = "", role: str = ""
) -> Callable[[type[ScriptedEnv]], Env]:
    """Build an environment with a task T and observations O1, O2, ..., with this info."""
    info = {k: v for k, v in (("suffix", suffix), ("role", role)) if v}
    reset_info = {k: v for k, v in (("suffix", suffix), ("system", system)) if v}

    def build(kind: type[ScriptedEnv] = ScriptedEnv) -> Env:
        return kind(
            lambda env, action: (f"O{env.turn + 1}", 1.0, False, False, dict(info)),
            lambda env: ("T", dict(reset_info)),
        )

    return build


def prompts(env: Env, *actions: str) -> list[Any]:
    """Return, for the reset and each action, the rewritten context or the appended observation."""

    def prompt(observation: str, info: dict[str, Any]) -> Any:
        appended = (observation, info.get("suffix", ""), info.get("role", "user"))
        return info.get("context") or appended

    shown = [prompt(*result_of(env.reset(seed=1)))]
    for action in actions:
        observation, _, _, _, info = result_of(env.step(action))
        shown.append(prompt(observation, info))
    return shown


def context(*messages: tuple[str, str]) -> Context:
    return Context(tuple(Message(role, content) for role, content in messages))  # type: ignore[arg-type]


# History.

HISTORY = {
    "concat": (
        Concat,
        env_with("S"),
        [
            context(("user", "T\nS")),
            context(("user", "T\nO1\nS")),
            context(("user", "T\nO1\nO2\nS")),
        ],
    ),
    "concat with actions": (
        lambda env: Concat(env, actions=True),
        env_with("S"),
        [
            context(("user", "T\nS")),
            context(("user", "T\na1\nO1\nS")),
            context(("user", "T\na1\nO1\na2\nO2\nS")),
        ],
    ),
    "concat with a window": (
        lambda env: Concat(env, window=1, actions=True),
        env_with(),
        [
            context(("user", "T\n")),
            context(("user", "T\na1\nO1\n")),
            context(("user", "T\na2\nO2\n")),
            context(("user", "T\na3\nO3\n")),
        ],
    ),
    "concat with a system prompt": (
        Concat,
        env_with(system="be brief"),
        [
            context(("system", "be brief"), ("user", "T\n")),
            context(("system", "be brief"), ("user", "T\nO1\n")),
        ],
    ),
    "chat": (ConcatChat, env_with(), [("T", "", "user"), ("O1", "", "user"), ("O2", "", "user")]),
    "chat with a suffix": (
        ConcatChat,
        env_with("S"),
        [
            ("T", "S", "user"),
            context(("user", "T"), ("assistant", "a1"), ("user", "O1\nS")),
            context(
                ("user", "T"),
                ("assistant", "a1"),
                ("user", "O1"),
                ("assistant", "a2"),
                ("user", "O2\nS"),
            ),
        ],
    ),
    "chat with a window": (
        lambda env: ConcatChat(env, window=1),
        env_with(system="be brief"),
        [
            ("T", "", "user"),
            ("O1", "", "user"),
            context(("system", "be brief"), ("user", "T"), ("assistant", "a2"), ("user", "O2")),
            context(("system", "be brief"), ("user", "T"), ("assistant", "a3"), ("user", "O3")),
        ],
    ),
    "chat with tools": (
        lambda env: ConcatChat(env, window=1),
        env_with(role="tool"),
        [
            ("T", "", "user"),
            ("O1", "", "tool"),
            context(("user", "T"), ("assistant", "a2"), ("tool", "O2")),
        ],
    ),
    "chat on reset": (
        ConcatChatOnReset,
        env_with("S"),
        [("T", "S", "user"), ("O1", "S", "continuation"), ("O2", "S", "continuation")],
    ),
}


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
@pytest.mark.parametrize("mode", HISTORY)
def test_history_wrapper_shows_the_expected_prompts(mode: str, kind: type[ScriptedEnv]) -> None:
    wrap, build, expected = HISTORY[mode]
    actions = [f"a{n}" for n in range(1, len(expected))]
    assert prompts(wrap(build(kind)), *actions) == expected  # type: ignore[operator]


def test_concat_does_not_double_line_ends() -> None:
    env = Concat(
        ScriptedEnv(lambda env, action: ("O1\n", 0.0, False, False, {}), lambda env: ("T\n", {})),
        actions=True,
    )
    assert prompts(env, "a1\n", "a2")[-1] == context(("user", "T\na1\nO1\na2\nO1\n"))


def test_window_always_keeps_the_task() -> None:
    for wrap in (Concat, ConcatChat):
        for size in (1, 2, 5):
            env = wrap(env_with()(ScriptedEnv), window=size)
            last = prompts(env, *(f"a{n}" for n in range(1, 9)))[-1]
            text = "\n".join(m.content for m in last.messages)
            assert text.startswith("T\n")
            assert "O8" in text
            assert f"O{9 - size}" in text
            assert f"O{8 - size}" not in text


def test_template_renders_the_observation_as_a_prompt() -> None:
    env = ConcatChat(
        env_with("S")(ScriptedEnv), template=lambda messages: json.dumps(messages) + "<gen>"
    )
    observation, _ = env.reset(seed=1)
    assert observation == '[{"role": "user", "content": "T\\nS"}]<gen>', (
        "the suffix comes before the generation prompt"
    )
    assert env.step("a")[0].endswith('{"role": "user", "content": "O1\\nS"}]<gen>')


def test_reset_clears_the_history() -> None:
    for wrap in (Concat, ConcatChat):
        env = wrap(env_with("S")(ScriptedEnv), window=2)
        first = prompts(env, "a1", "a2")
        assert prompts(env, "a1", "a2") == first


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "2"])
def test_invalid_window_is_rejected(size: Any) -> None:
    with pytest.raises(ConfigError, match="window"):
        Concat(ScriptedEnv(), window=size)


def test_long_history_takes_linear_time() -> None:
    env = Concat(ScriptedEnv(lambda env, action: ("x" * 100, 0.0, False, False, {})), actions=True)
    env.reset(seed=1)
    began = time.process_time()
    for _ in range(2000):
        env.step("y" * 100)
    assert time.process_time() - began < 1.0


# Formats.

FORMATS: dict[str, tuple[type[ActionFormat], list[tuple[str, str | None]]]] = {
    "boxed": (
        Boxed,
        [
            (r"\boxed{5}", "5"),
            (r"\boxed{1} no, \boxed{2}!", "2"),
            (r"\boxed{a{b}c}", "a{b}c"),
            (r"\boxed{\boxed{5}}", "5"),
            (r"\boxed{5} or \boxed{6", "5"),
            (r"\boxed{{5}", None),
            (r"\boxed{}", ""),
            (r"} \boxed{5} {", "5"),
            (r"\boxed{\frac{1}{2}} }", r"\frac{1}{2}"),
            ("5", None),
            ("", None),
            (r"\boxed 5", None),
        ],
    ),
    "react": (
        React,
        [
            ("Thought: low\nAction: 5", "5"),
            ("Action: 1\nObservation: x\nAction:  2 ", "2"),
            ("action : 3", "3"),
            ("Thought: Action: 5", None),
            ("Action:\n", None),
            ("Action: 5\nAction:", "5"),
            ("", None),
        ],
    ),
    "tool_call": (
        ToolCall,
        [
            ('<tool_call>\n{"name": "act", "arguments": {"action": "5"}}\n</tool_call>', "5"),
            ('<tool_call>{"name": "act", "arguments": {"action": 5}}</tool_call>', "5"),
            (
                '<tool_call>{"name": "act", "arguments": {"action": "a"}}</tool_call>'
                "<tool_call>{broken}</tool_call>",
                "a",
            ),
            ('<tool_call>{"name": "look", "arguments": {"action": "5"}}</tool_call>', None),
            ('<tool_call>{"name": "act", "arguments": "5"}</tool_call>', None),
            ("<tool_call>[1]</tool_call>", None),
            ("<tool_call></tool_call>", None),
            (
                r'<tool_call>{"name": "act", "arguments": {"action": "\ud83d\ude00 \ud83d"}}'
                "</tool_call>",
                "\U0001f600 \ufffd",
            ),
            ('{"name": "act"}', None),
            ("</tool_call>", None),
            ("", None),
        ],
    ),
    "code": (
        Code,
        [
            ("```python\nact('5')\n```", "5"),
            ('```\nact("a\\"b")\n```', 'a"b'),
            ("```py\nact('')\n```", ""),
            ("```py\nact('\\ud83d\\ude00 \\ud83d')\n```", "\U0001f600 \ufffd"),
            ("```python\nact(5)\n```", "5"),
            ("```python\nx = 1\nprint(x)\n```", "x = 1\nprint(x)"),
            ("```\none\n```\n```\ntwo\n```", "two"),
            ("```python\nact(f())\n```", "act(f())"),
            ("`code` and\n```sh\nls -l\n```", "ls -l"),
            ("```python\nnever closed", None),
            ("", None),
        ],
    ),
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [(name, *case) for name, (_, cases) in FORMATS.items() for case in cases],
)
def test_format_parses_the_action(name: str, text: str, expected: str | None) -> None:
    assert FORMATS[name][0](ScriptedEnv()).parse(text) == expected


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_format_parses_what_it_writes(action: str) -> None:
    tool_call, code, boxed, react = (f(ScriptedEnv()) for f in (ToolCall, Code, Boxed, React))
    if "<" not in action:
        assert tool_call.parse("hm " + tool_call.write(action)) == action
    if "`" not in action:
        assert code.parse("hm " + code.write(action)) == action
    if not set("{}") & set(action):
        assert boxed.parse("hm " + boxed.write(action)) == action
    line = " ".join(action.split())
    if line and len(line.splitlines()) == 1:
        assert react.parse("hm\n" + react.write(line)) == line


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{{" * 64 + "{}" * 300_000,
        r"\boxed{" * 140_000,
        "}" * 1_000_000,
        "Action:" + " " * 1_000_000 + "x",
        "Action" + " " * 1_000_000,
        "<tool_call>{" * 90_000,
        "<tool_call>" + '{"a":' * 200_000 + "</tool_call>",
        "<tool_call></tool_call>" * 40_000,
        "```" + " " * 1_000_000,
        "```python\nact(" + "1+" * 500_000 + "1)\n```",
        "```python\nact(" + "(" * 500_000 + ")\n```",
        "```\n" * 250_000,
        "`" * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_format_parses_hostile_text_in_linear_time(name: str, text: str) -> None:
    """A megabyte of the worst text for each parser."""
    began = time.process_time()
    FORMATS[name][0](ScriptedEnv()).parse(text)
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize("name", FORMATS)
def test_format_instruction_contains_no_legal_action(name: str) -> None:
    env = make("game:GuessTheNumber-v0-easy", wrappers=[name])
    for seed in range(20):
        _, info = env.reset(seed=seed)
        assert env.instruction() == info["system"]
        assert env.parse(env.instruction()) in ("n", None), "a copied example must not be legal"
    assert (
        make("game:GuessTheNumber-v0-easy")
        .reset(seed=1)[0]
        .endswith(r"Give your answer as \boxed{n}.")
    )


def test_instruction_follows_the_environments_system_prompt() -> None:
    env = React(env_with(system="be brief")(ScriptedEnv))
    assert env.reset(seed=1)[1]["system"] == "be brief\n\n" + env.instruction()
    env = React(env_with(system="be brief")(ScriptedEnv), place="observation")
    observation, info = env.reset(seed=1)
    assert (observation, info["system"]) == ("T\n" + env.instruction(), "be brief")


def test_turn_without_an_action_shows_the_last_suffix_again() -> None:
    inner = ScriptedEnv(lambda env, action: ("moved", 0.0, False, False, {"suffix": "BOARD"}))
    env = Boxed(inner, on_error="again")
    env.reset(seed=0)
    assert "suffix" not in env.step("none")[4]
    env.step(r"\boxed{a}")
    assert env.step("none")[4] == {"suffix": "BOARD", "format_error": True}


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("on_error", "log", "expected"),
    [
        ("end", [], (-0.5, True, {"success": False, "format_error": True})),
        ("again", [], (-0.5, False, {"format_error": True})),
        ("pass", ["step nothing"], (1.0, False, {"parsed_action": "nothing"})),
    ],
)
def test_format_handles_an_answer_without_an_action(
    kind: type[ScriptedEnv], on_error: Any, log: list[str], expected: Any
) -> None:
    inner = kind()
    env = Boxed(inner, on_error=on_error, error_reward=-0.5)
    result_of(env.reset(seed=1))
    observation, reward, terminated, truncated, info = result_of(env.step("nothing"))
    assert (inner.log[2:], (reward, terminated, info), truncated) == (log, expected, False)
    assert ("No action was found" in observation) == (on_error != "pass")
    if on_error == "again":
        assert result_of(env.step(r"\boxed{x}"))[4] == {"parsed_action": "x"}
        assert inner.log[2:] == ["step x"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Boxed, r"\boxed{}"),
        (Boxed, r"\boxed{ }}}"),
        (React, "Thought: hm\nAction: "),
        (ToolCall, '<tool_call>{"name": "act", "arguments": {"action": ""}}</tool_call>'),
        (Code, "```python\n```"),
    ],
)
def test_empty_action_is_a_format_error_unless_allowed(kind: type[ActionFormat], text: str) -> None:
    inner = ScriptedEnv()
    env = kind(inner)
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step(text)
    assert (reward, terminated, info) == (-0.1, True, {"success": False, "format_error": True})
    assert inner.log[2:] == []
    env = kind(inner, allow_empty=True)
    env.reset(seed=1)
    assert env.step(text)[4]["parsed_action"].strip() == ""
    assert inner.log[-1].strip() == "step"


def test_max_errors_ends_the_episode() -> None:
    """The environment's own turn limit does not count turns without an action."""
    env = make(
        "game:GuessTheNumber-v0-easy", wrappers=[("boxed", {"on_error": "again", "max_errors": 2})]
    )
    env.reset(seed=0)
    assert env.step("what?")[1:4] == (-0.1, False, False)
    guess = next(n for n in range(1, 11) if n != env.unwrapped.secret)
    assert env.step(f"\\boxed{{{guess}}}")[4].get("format_error") is None
    *_, terminated, _, info = env.step("what?")
    assert terminated and info["success"] is False


@pytest.mark.parametrize(
    "kwargs", [{"place": "end"}, {"on_error": "ignore"}, {"max_errors": 0}, {"allow_empty": 1}]
)
def test_invalid_format_arguments_are_rejected(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(kwargs))):
        Boxed(ScriptedEnv(), **kwargs)


def test_last_boxed_searches_a_long_text() -> None:
    assert last_boxed("x" * 1_000_000 + r"\boxed{5}" + "y" * 1_000_000) == "5"


# Limits and statistics.


def endless(kind: type[ScriptedEnv] = ScriptedEnv) -> ScriptedEnv:
    return kind(lambda env, action: ("O", 1.0, False, False, {}))


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
def test_turn_limit_truncates_and_keeps_the_last_result(kind: type[ScriptedEnv]) -> None:
    env = TurnLimit(endless(kind), 2)
    for _ in range(2):
        result_of(env.reset(seed=1))
        assert result_of(env.step("a")) == ("O", 1.0, False, False, {})
        assert result_of(env.step("a")) == ("O", 1.0, False, True, {"success": False})
        assert env.ended


def test_turn_limit_does_not_override_terminated() -> None:
    env = TurnLimit(ScriptedEnv(lambda env, action: ("O", 1.0, True, False, {"success": True})), 1)
    env.reset(seed=1)
    assert env.step("a") == ("O", 1.0, True, False, {"success": True})


def test_token_limit_counts_action_tokens() -> None:
    env = TokenLimit(endless(), 5)
    env.reset(seed=1)
    assert env.step("one two three")[3:] == (False, {"action_tokens": 3})
    assert env.step("four five")[3:] == (True, {"action_tokens": 5, "success": False})
    env = TokenLimit(endless(), 5, count=len)
    env.reset(seed=1)
    assert env.step("12345")[3] is True


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
def test_invalid_limits_are_rejected(limit: Any) -> None:
    for wrapper in (TurnLimit, TokenLimit):
        with pytest.raises(ConfigError, match="integer >= 1"):
            wrapper(ScriptedEnv(), limit)


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
def test_statistics_count_each_episode(kind: type[ScriptedEnv]) -> None:
    env = Statistics(kind())
    for _ in range(2):
        result_of(env.reset(seed=1))
        for n, total in ((1, 1.0), (2, 3.0), (3, 6.0)):
            assert result_of(env.step("a"))[4]["episode"] == {"return": total, "turns": n}
    assert env.last is not None
    assert (env.last["return"], env.last["turns"], env.last["seconds"] >= 0) == (6.0, 3, True)


def test_statistics_of_the_previous_episode_are_an_option() -> None:
    env = Statistics(ScriptedEnv(), previous=True)
    assert "previous_episode" not in env.reset(seed=1)[1]
    for _ in range(3):
        env.step("a")
    assert env.reset(seed=1)[1]["previous_episode"] == {"return": 6.0, "turns": 3}


class SharedInfo(Env):
    """Returns the same dictionary every time."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}

    def on_reset(self, options: Any) -> Any:
        return "T", self.info

    def on_step(self, action: str) -> Any:
        return "O", 1.0, False, False, self.info


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        (Boxed, "parsed_action"),
        (partial(TurnLimit, max_turns=1), "success"),
        (partial(TokenLimit, max_tokens=1), "action_tokens"),
        (Statistics, "episode"),
    ],
)
def test_a_wrapper_does_not_change_the_info_of_the_environment(wrap: Any, key: str) -> None:
    inner = SharedInfo()
    env = wrap(inner)
    infos = []
    for word in ("x0", "x1"):
        env.reset(seed=0)
        infos.append(env.step(f"\\boxed{{{word}}}")[4])
        assert key in infos[-1]
        assert inner.info == {}
    if wrap is Boxed:
        assert [info["parsed_action"] for info in infos] == ["x0", "x1"]
