"""Wrappers: what the model is shown, how its actions are read, and where an episode is cut."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
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


def says(suffix: str = "", system: str = "", role: str = "") -> Callable[[type[ScriptedEnv]], Env]:
    """A task T with observations O1, O2, ..., each with a suffix, a system prompt, or a role."""
    info = {k: v for k, v in (("suffix", suffix), ("role", role)) if v}

    def build(kind: type[ScriptedEnv] = ScriptedEnv) -> Env:
        begin = {"suffix": suffix} if suffix else {}
        return kind(
            lambda env, action: (f"O{env.turn + 1}", 1.0, False, False, dict(info)),
            lambda env: ("T", {**begin, **({"system": system} if system else {})}),
        )

    return build


def shown(env: Env, *actions: str) -> list[Any]:
    """What the model is shown after the reset and after each action: a rewritten context, or what is appended to it."""
    observation, info = result_of(env.reset(seed=1))
    found = [info.get("context") or (observation, info.get("suffix", ""), info.get("role", "user"))]
    for action in actions:
        observation, _, _, _, info = result_of(env.step(action))
        found.append(
            info.get("context") or (observation, info.get("suffix", ""), info.get("role", "user"))
        )
    return found


def context(*said: tuple[str, str]) -> Context:
    return Context(tuple(Message(role, content) for role, content in said))  # type: ignore[arg-type]


# History.

HISTORY = {
    "concat": (
        Concat,
        says("S"),
        [
            context(("user", "T\nS")),
            context(("user", "T\nO1\nS")),
            context(("user", "T\nO1\nO2\nS")),
        ],
    ),
    "concat with actions": (
        lambda env: Concat(env, actions=True),
        says("S"),
        [
            context(("user", "T\nS")),
            context(("user", "T\na1\nO1\nS")),
            context(("user", "T\na1\nO1\na2\nO2\nS")),
        ],
    ),
    "concat with a window": (
        lambda env: Concat(env, window=1, actions=True),
        says(),
        [
            context(("user", "T\n")),
            context(("user", "T\na1\nO1\n")),
            context(("user", "T\na2\nO2\n")),
            context(("user", "T\na3\nO3\n")),
        ],
    ),
    "concat with a system prompt": (
        Concat,
        says(system="be brief"),
        [
            context(("system", "be brief"), ("user", "T\n")),
            context(("system", "be brief"), ("user", "T\nO1\n")),
        ],
    ),
    "chat": (ConcatChat, says(), [("T", "", "user"), ("O1", "", "user"), ("O2", "", "user")]),
    "chat with a suffix": (
        ConcatChat,
        says("S"),
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
        says(system="be brief"),
        [
            ("T", "", "user"),
            ("O1", "", "user"),
            context(("system", "be brief"), ("user", "T"), ("assistant", "a2"), ("user", "O2")),
            context(("system", "be brief"), ("user", "T"), ("assistant", "a3"), ("user", "O3")),
        ],
    ),
    "chat with tools": (
        lambda env: ConcatChat(env, window=1),
        says(role="tool"),
        [
            ("T", "", "user"),
            ("O1", "", "tool"),
            context(("user", "T"), ("assistant", "a2"), ("tool", "O2")),
        ],
    ),
    "chat on reset": (
        ConcatChatOnReset,
        says("S"),
        [("T", "S", "user"), ("O1", "S", "continuation"), ("O2", "S", "continuation")],
    ),
}


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
@pytest.mark.parametrize("mode", HISTORY)
def test_what_the_model_is_shown(mode: str, kind: type[ScriptedEnv]) -> None:
    wrap, build, wanted = HISTORY[mode]
    actions = [f"a{n}" for n in range(1, len(wanted))]
    assert shown(wrap(build(kind)), *actions) == wanted  # type: ignore[operator]


def test_a_line_is_ended_once() -> None:
    env = Concat(
        ScriptedEnv(lambda env, action: ("O1\n", 0.0, False, False, {}), lambda env: ("T\n", {})),
        actions=True,
    )
    assert shown(env, "a1\n", "a2")[-1] == context(("user", "T\na1\nO1\na2\nO1\n"))


def test_a_window_of_any_size_keeps_the_task() -> None:
    for wrap in (Concat, ConcatChat):
        for size in (1, 2, 5):
            last = shown(wrap(says()(ScriptedEnv), window=size), *(f"a{n}" for n in range(1, 9)))[
                -1
            ]
            text = "\n".join(m.content for m in last.messages)
            assert text.startswith("T\n")
            assert ("O8" in text, f"O{9 - size}" in text, f"O{8 - size}" in text) == (
                True,
                True,
                False,
            )


def test_a_template_makes_the_observation_itself_a_prompt() -> None:
    env = ConcatChat(
        says("S")(ScriptedEnv), template=lambda messages: json.dumps(messages) + "<gen>"
    )
    observation, _ = env.reset(seed=1)
    assert observation == '[{"role": "user", "content": "T\\nS"}]<gen>', (
        "the suffix stands before the generation prompt"
    )
    assert env.step("a")[0].endswith('{"role": "user", "content": "O1\\nS"}]<gen>')


def test_history_begins_anew_with_each_episode() -> None:
    for wrap in (Concat, ConcatChat):
        env = wrap(says("S")(ScriptedEnv), window=2)
        first = shown(env, "a1", "a2")
        assert shown(env, "a1", "a2") == first


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "2"])
def test_a_window_that_means_nothing_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="window"):
        Concat(ScriptedEnv(), window=size)


def test_a_long_history_costs_no_more_than_its_text() -> None:
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
                '<tool_call>{"name": "act", "arguments": {"action": "a"}}</tool_call><tool_call>{broken}</tool_call>',
                "a",
            ),
            ('<tool_call>{"name": "look", "arguments": {"action": "5"}}</tool_call>', None),
            ('<tool_call>{"name": "act", "arguments": "5"}</tool_call>', None),
            ("<tool_call>[1]</tool_call>", None),
            ("<tool_call></tool_call>", None),
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
    ("name", "text", "wanted"),
    [(name, *case) for name, (_, cases) in FORMATS.items() for case in cases],
)
def test_an_action_is_read_from_what_the_model_wrote(
    name: str, text: str, wanted: str | None
) -> None:
    assert FORMATS[name][0](ScriptedEnv()).parse(text) == wanted


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_what_a_format_writes_it_reads_back(action: str) -> None:
    if "<" not in action:
        assert (
            ToolCall(ScriptedEnv()).parse("hm " + ToolCall(ScriptedEnv()).write(action)) == action
        )
    if "`" not in action:
        assert Code(ScriptedEnv()).parse("hm " + Code(ScriptedEnv()).write(action)) == action
    if not set("{}") & set(action):
        assert Boxed(ScriptedEnv()).parse("hm " + Boxed(ScriptedEnv()).write(action)) == action
    line = " ".join(action.split())
    if line and len(line.splitlines()) == 1:
        assert React(ScriptedEnv()).parse("hm\n" + React(ScriptedEnv()).write(line)) == line


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
def test_no_text_takes_long_or_breaks_anything(name: str, text: str) -> None:
    """A megabyte that a model may well write, made to hurt."""
    began = time.process_time()
    FORMATS[name][0](ScriptedEnv()).parse(text)
    assert time.process_time() - began < 3.0


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_tells_the_model_how_to_answer_without_giving_an_answer_away(name: str) -> None:
    env = make("game:GuessTheNumber-v0-easy", wrappers=[name])
    for seed in range(20):
        _, info = env.reset(seed=seed)
        assert env.instruction() == info["system"]
        assert env.parse(env.instruction()) in ("n", None), (
            "an example that a model may copy is no guess"
        )
    assert (
        make("game:GuessTheNumber-v0-easy")
        .reset(seed=1)[0]
        .endswith(r"Give your answer as \boxed{n}.")
    )


def test_the_instructions_stand_behind_an_environments_own_system_prompt() -> None:
    env = React(says(system="be brief")(ScriptedEnv))
    assert env.reset(seed=1)[1]["system"] == "be brief\n\n" + env.instruction()
    observation, info = React(says(system="be brief")(ScriptedEnv), place="observation").reset(
        seed=1
    )
    assert (observation, info["system"]) == ("T\n" + env.instruction(), "be brief")


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("on_error", "log", "wanted"),
    [
        ("end", [], (-0.5, True, {"success": False, "format_error": True})),
        ("again", [], (-0.5, False, {"format_error": True})),
        ("pass", ["step nothing"], (1.0, False, {"parsed_action": "nothing"})),
    ],
)
def test_an_answer_without_an_action(
    kind: type[ScriptedEnv], on_error: Any, log: list[str], wanted: Any
) -> None:
    inner = kind()
    env = Boxed(inner, on_error=on_error, error_reward=-0.5)
    result_of(env.reset(seed=1))
    observation, reward, terminated, truncated, info = result_of(env.step("nothing"))
    assert (inner.log[2:], (reward, terminated, info), truncated) == (log, wanted, False)
    assert ("No action was found" in observation) == (on_error != "pass")
    if on_error == "again":
        assert result_of(env.step(r"\boxed{x}"))[4] == {"parsed_action": "x"}
        assert inner.log[2:] == ["step x"]


def test_unreadable_answers_come_to_an_end() -> None:
    """The environment's own turn limit does not see them."""
    env = make(
        "game:GuessTheNumber-v0-easy", wrappers=[("boxed", {"on_error": "again", "max_errors": 2})]
    )
    env.reset(seed=0)
    assert env.step("what?")[1:4] == (-0.1, False, False)
    guess = next(n for n in range(1, 11) if n != env.unwrapped.secret)
    assert env.step(f"\\boxed{{{guess}}}")[4].get("format_error") is None
    *_, terminated, _, info = env.step("what?")
    assert terminated and info["success"] is False


@pytest.mark.parametrize("wrong", [{"place": "end"}, {"on_error": "ignore"}, {"max_errors": 0}])
def test_a_format_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Boxed(ScriptedEnv(), **wrong)


def test_the_last_box_is_found_in_a_long_text() -> None:
    assert last_boxed("x" * 1_000_000 + r"\boxed{5}" + "y" * 1_000_000) == "5"


# Limits and statistics.


def endless(kind: type[ScriptedEnv] = ScriptedEnv) -> ScriptedEnv:
    return kind(lambda env, action: ("O", 1.0, False, False, {}))


@pytest.mark.parametrize("kind", [ScriptedEnv, AsyncEnv], ids=["sync", "async"])
def test_a_turn_limit_truncates_and_keeps_the_last_answer(kind: type[ScriptedEnv]) -> None:
    env = TurnLimit(endless(kind), 2)
    for _ in range(2):
        result_of(env.reset(seed=1))
        assert result_of(env.step("a")) == ("O", 1.0, False, False, {})
        assert result_of(env.step("a")) == ("O", 1.0, False, True, {"success": False})
        assert env.ended


def test_a_limit_does_not_overrule_an_end() -> None:
    env = TurnLimit(ScriptedEnv(lambda env, action: ("O", 1.0, True, False, {"success": True})), 1)
    env.reset(seed=1)
    assert env.step("a") == ("O", 1.0, True, False, {"success": True})


def test_a_token_limit_counts_the_actions() -> None:
    env = TokenLimit(endless(), 5)
    env.reset(seed=1)
    assert env.step("one two three")[3:] == (False, {"action_tokens": 3})
    assert env.step("four five")[3:] == (True, {"action_tokens": 5, "success": False})
    env = TokenLimit(endless(), 5, count=len)
    env.reset(seed=1)
    assert env.step("12345")[3] is True


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
def test_limits_that_mean_nothing_are_refused(limit: Any) -> None:
    for wrapper in (TurnLimit, TokenLimit):
        with pytest.raises(ConfigError, match="whole number from 1 up"):
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
