"""Complete episodes with real tools: Python, search and MCP."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import ByteTokenizer
from project import SUPPORT
from tool_worlds import Quiz, Shop

from gem_core.env.registry import environments, register
from gem_core.policies.scripted import ScriptedPolicy
from gem_core.rollout.engine import Rollout, run_batch, tasks_for
from gem_core.rollout.renderer import Renderer
from gem_core.types import Generation, Message, Sampling, Task
from gem_tools.mcp import McpTools
from gem_tools.search import Index
from gem_tools.wrapper import ToolWrapper

SUMS = {
    f"What is the sum of the primes below {n}?": str(
        sum(p for p in range(2, n) if all(p % d for d in range(2, p)))
    )
    for n in range(50, 90)
}


class Solver:
    """A chat policy that calls `answer(messages)` for the next text."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Generation:
        return Generation((), text=self.answer(messages))


@pytest.fixture
def quiz() -> Any:
    register("test:Primes", lambda: Quiz(SUMS), wrappers=(("boxed", {}),))
    yield
    environments.remove("test:Primes")


def primes(prompt: str) -> str:
    """Write a program first, then answer with its output."""
    if "<|im_start|>tool\n" in prompt:
        output = prompt.rpartition("<|im_start|>tool")[2].split()[0].removesuffix("<|im_end|>")
        return f"\\boxed{{{output}}}"
    below = re.findall(r"primes below (\d+)", prompt)[-1]
    program = f"print(sum(p for p in range(2, {below}) if all(p % d for d in range(2, p))))"
    return f"<python>{program}</python>"


@pytest.mark.usefixtures("quiz")
def test_python_tool_episodes_are_token_exact() -> None:
    tokenizer = ByteTokenizer()
    wrappers = ["python(success_reward=0.25, seconds=60)"]
    tasks = tasks_for("test:Primes", range(64), wrappers=wrappers)
    sampling = Sampling(max_tokens=400)
    episodes = run_batch(
        tasks,
        ScriptedPolicy(primes, tokenizer),
        Renderer(tokenizer),
        sampling=sampling,
        concurrency=64,
    )
    assert [e.failure for e in episodes if e.failure] == []
    assert {e.rewards for e in episodes} == {(0.25, 1.0)}
    assert all(e.success for e in episodes)
    for episode in episodes:
        first, second = episode.turns
        assert (first.info["use_tool"], second.info["use_tool"]) == (True, False)
        assert [m.role for m in second.messages] == ["tool"]
        # The second prompt is the first prompt, the sampled call unchanged, and the tool's result
        # as observation tokens.
        start = (*episode.prompt_ids(0), *first.action_ids)
        assert episode.prompt_ids(1)[: len(start)] == start
        assert second.messages[0].content in tokenizer.decode(second.added_ids)
        assert not second.restarted


def test_search_tool_answers_questions(tmp_path: Path) -> None:
    rivers = {
        "Nile": "Egypt",
        "Po": "Italy",
        "Rhine": "Germany",
        "Volga": "Russia",
        "Tagus": "Portugal",
    }
    corpus = tmp_path / "rivers.jsonl"
    corpus.write_text(
        "\n".join(
            json.dumps({"title": river, "text": f"The {river} is a river in {land}."})
            for river, land in rivers.items()
        )
    )
    Index.build(corpus, tmp_path / "index")
    questions = {f"In which country is the {river}?": land for river, land in rivers.items()}

    def answer(messages: Sequence[Message]) -> str:
        last = messages[-1]
        if last.role == "tool":
            return re.findall(r"is a river in (\w+)", last.content)[0]
        return f"I look it up. <search>{last.content.split()[-1].strip('?')}</search>"

    def make_env(task: Task) -> ToolWrapper:
        return ToolWrapper(Quiz(questions), [("search", {"index": tmp_path / "index", "k": 1})])

    episodes = Rollout(Solver(answer), make_env=make_env).run_batch(
        [Task("quiz", seed) for seed in range(20)]
    )
    assert len({e.turns[0].messages[-1].content for e in episodes}) == 5  # all questions occur
    assert [e.success for e in episodes] == [True] * 20


@pytest.mark.parametrize("style", ["tag", "json", "native"])
def test_mcp_tools_solve_a_task_in_a_real_database(tmp_path: Path, style: Any) -> None:
    database = str(tmp_path / "shop.db")
    args = [str(SUPPORT / "mcp_shop_server.py"), database]
    server = McpTools(command=sys.executable, args=args, start_deadline=120, share=False)

    def call(name: str, **arguments: str) -> str:
        if style == "tag":
            return f"<{name}>{json.dumps(arguments)}</{name}>"
        if style == "json":
            return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        function = {"name": name, "arguments": json.dumps(arguments)}
        tool_calls = [{"id": "1", "type": "function", "function": function}]
        return json.dumps({"role": "assistant", "content": None, "tool_calls": tool_calls})

    def answer(messages: Sequence[Message]) -> str:
        results = [m.content for m in messages if m.role == "tool"]
        if not results:
            return call("schema")
        if len(results) == 1:
            assert "price real, amount integer" in results[0]
            sql = (
                "select o.id from orders o join items i on i.order_id = o.id "
                "where o.status = 'open' group by o.id "
                "order by sum(i.price * i.amount) desc limit 1"
            )
            return call("query", sql=sql)
        ((best,),) = ast.literal_eval(results[1])
        if len(results) == 2:
            return call("execute", sql=f"update orders set status = 'shipped' where id = {best}")
        assert results[2] == "1 row(s) changed"
        return str(best)

    env = ToolWrapper(Shop(database), [server], style=style)
    episodes = Rollout(Solver(answer), make_env=lambda task: env, concurrency=1).run_batch(
        [Task("shop", seed) for seed in range(2)]
    )
    assert [e.failure for e in episodes if e.failure] == []
    for episode in episodes:
        successes = episode.final_info["tool_successes"]
        assert (episode.success, len(episode.turns), successes) == (True, 4, 3)
