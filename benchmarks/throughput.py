"""Throughput: import, vectors, history, slow and crashing environments, many episodes and tokens, beside the reference.

    python benchmarks/throughput.py            # makes an environment for the reference first, once; prints a markdown table
    python benchmarks/throughput.py --only vector,history

Each figure comes from a process of its own. Processor time is given where other load on the machine would disturb, the clock
where waiting is the point. `GEM_REFERENCE_PYTHON` names an interpreter that has the reference. The last row uses the tokenizer
that ships with gem where transformers is installed, a pure Python one where it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GAME = "game:GuessTheNumber-v0-hard"
OBSERVATION, ACTION = "o" * 199 + "\n", "a" * 399 + "\n"
GUESSES = [f"\\boxed{{{n}}}" for n in range(1, 51)]
EARLY, LATE = 10, 2000


def best(
    work: Callable[[], Any], times: int, clock: Callable[[], float] = time.process_time
) -> float:
    """The shortest of some runs: everything that disturbs only adds."""
    found = []
    for _ in range(times):
        start = clock()
        work()
        found.append(clock() - start)
    return min(found)


def megabytes() -> float:
    """The largest amount of memory this process has had."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


# Import.


def import_time(module: str) -> dict[str, float]:
    start = time.process_time()
    __import__(module)
    return {
        "seconds": time.process_time() - start,
        "modules": len(sys.modules),
        "megabytes": megabytes(),
    }


def import_ours() -> dict[str, float]:
    return import_time("gem_core")


def import_reference() -> dict[str, float]:
    return import_time("gem")


# Vectors: the same guesses on both sides, and the next episode begins in the step that ends one.


def vector_rate(vec: Any, n: int = 128, rounds: int = 100) -> dict[str, float]:
    batches = [[GUESSES[(k * 7 + i) % 50] for i in range(n)] for k in range(50)]
    vec.reset(seed=0)

    def steps() -> None:
        for k in range(rounds):
            vec.step(batches[k % 50])

    steps()
    return {
        "per cpu second": n * rounds / best(steps, 5),
        "per second": n * rounds / best(steps, 5, time.perf_counter),
    }


def vector_ours(mode: Any) -> dict[str, float]:
    from gem_execution.vector.factory import make_vec

    with make_vec(GAME, 128, mode=mode, autoreset="same_step") as vec:
        return vector_rate(vec)


def vector_sync_ours() -> dict[str, float]:
    return vector_ours("sync")


def vector_async_ours() -> dict[str, float]:
    return vector_ours("async")


def vector_sync_reference() -> dict[str, float]:
    import gem

    return vector_rate(gem.make_vec([GAME] * 128))


def vector_async_reference() -> dict[str, float]:
    import gem

    return vector_rate(gem.make_vec([GAME] * 128, async_mode=True))


# History: microseconds of a step around turn 10 and around turn 2000.


def per_step(start: Callable[[], None], step: Callable[[], Any]) -> dict[str, float]:
    def around(turn: int, width: int, times: int) -> float:
        shortest = float("inf")
        for _ in range(times):
            start()
            for _ in range(turn - width // 2):
                step()
            begin = time.process_time()
            for _ in range(width):
                step()
            shortest = min(shortest, (time.process_time() - begin) / width)
        return shortest * 1e6

    return {"early": around(EARLY, 10, 300), "late": around(LATE, 40, 3)}


def chatml(messages: list[dict[str, str]]) -> str:
    return (
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        + "<|im_start|>assistant\n"
    )


def history_ours() -> dict[str, dict[str, float]]:
    from gem_core.env.base import Env
    from gem_core.rollout.renderer import Conversation, Renderer
    from gem_core.types import Message
    from gem_core.wrappers.history import Concat, ConcatChat, ConcatChatOnReset

    class Endless(Env):
        execution = "inline"

        def on_reset(self, options: Any) -> Any:
            return OBSERVATION, {}

        def on_step(self, action: str) -> Any:
            return OBSERVATION, 0.0, False, False, {}

    found = {}
    for name, env in {
        "concat": Concat(Endless()),
        "concat_with_action": Concat(Endless(), actions=True),
        "concat_chat_on_reset": ConcatChatOnReset(Endless()),
        "messages": ConcatChat(Endless()),
        "concat_chat": ConcatChat(Endless(), template=chatml),
    }.items():
        found[name] = per_step(lambda env=env: env.reset(seed=0), lambda env=env: env.step(ACTION))  # type: ignore[misc]
    renderer = Renderer(tokenizer())
    ids = tuple(renderer.tokenizer.encode(ACTION, add_special_tokens=False))
    talk = [Conversation(renderer)]

    def start() -> None:
        talk[0] = Conversation(renderer)
        talk[0].begin([Message("user", OBSERVATION)])

    def step() -> None:
        talk[0].act(ids, ACTION)
        talk[0].say([Message("user", OBSERVATION)])

    found["token deltas"] = per_step(start, step)
    return found


def history_reference() -> dict[str, dict[str, float]]:
    from gem.core import Env
    from gem.wrappers.wrapper_factory import WRAPPER_FACTORY

    class Endless(Env):
        def reset(self, seed: Any = None) -> Any:
            return OBSERVATION, {}

        def step(self, action: str) -> Any:
            return OBSERVATION, 0.0, False, False, {}

    class Template:
        def apply_chat_template(self, messages: Any, **_: Any) -> str:
            return chatml(messages)

    found = {}
    for name in ("concat", "concat_with_action", "concat_chat_on_reset", "concat_chat"):
        wrapped = WRAPPER_FACTORY[name](Endless(), tokenizer=Template())
        found[name] = per_step(
            lambda env=wrapped: env.reset(), lambda env=wrapped: env.step(ACTION)
        )  # type: ignore[misc]
    return found


# 63 environments of 10 ms, alone and with one of 1 s among them: steps per second of the 63.

SECONDS = 4.0


def slow_ours() -> dict[str, float]:
    from gem_core.env.base import Env
    from gem_execution.vector.env import AsyncVectorEnv

    class Sleeping(Env):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def on_reset(self, options: Any) -> Any:
            return "x", {}

        def on_step(self, action: str) -> Any:
            time.sleep(self.seconds)
            return "x", 0.0, False, False, {}

    def rate(seconds: list[float]) -> float:
        with AsyncVectorEnv([lambda s=s: Sleeping(s) for s in seconds]) as vec:  # type: ignore[misc]
            vec.reset(seed=0)
            vec.send(["x"] * len(seconds))
            steps, end = 0, time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                ready = vec.recv().indices
                steps += sum(i < 63 for i in ready)
                vec.send(dict.fromkeys(ready, "x"))
            return steps / SECONDS

    return {"alone": rate([0.01] * 63), "together": rate([0.01] * 63 + [1.0])}


def slow_reference() -> dict[str, float]:
    from gem.core import Env
    from gem.vector.async_vector_env import AsyncVectorEnv

    class Sleeping(Env):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def reset(self, seed: Any = None) -> Any:
            return "x", {}

        def step(self, action: str) -> Any:
            time.sleep(self.seconds)
            return "x", 0.0, False, False, {}

    def rate(seconds: list[float]) -> float:
        vec = AsyncVectorEnv(
            env_ids=["x"] * len(seconds), env_fns=[lambda s=s: Sleeping(s) for s in seconds]
        )
        vec.reset()
        steps, end = 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            vec.step(["x"] * len(seconds))
            steps += 63
        return steps / SECONDS

    return {"alone": rate([0.01] * 63), "together": rate([0.01] * 63 + [1.0])}


# One environment of 64 raises in its third step. How many of the 64 episodes are lost?


def crash_ours() -> dict[str, float]:
    from gem_core import RandomPlayer, Rollout, Task
    from gem_core.env.base import Env

    class Crashing(Env):
        execution = "inline"

        def on_reset(self, options: Any) -> Any:
            return "x", {}

        def on_step(self, action: str) -> Any:
            if self.seed == 17 and self.turn == 2:
                raise RuntimeError("crashed")
            return "x", 1.0, self.turn == 4, False, {}

        def sample_action(self) -> str:
            return "x"

    engine = Rollout(RandomPlayer(), concurrency=64, make_env=lambda task: Crashing())
    episodes = engine.run_batch([Task("x:Crashing", seed) for seed in range(64)])
    assert all(e.total_reward == 5.0 for e in episodes if not e.failed)
    return {"lost": sum(e.failed for e in episodes), "of": len(episodes)}


def crash_reference() -> dict[str, float]:
    from gem.core import Env
    from gem.vector.sync_vector_env import SyncVectorEnv

    class Crashing(Env):
        def __init__(self, number: int) -> None:
            self.number = number

        def reset(self, seed: Any = None) -> Any:
            self.turn = 0
            return "x", {}

        def step(self, action: str) -> Any:
            self.turn += 1
            if self.number == 17 and self.turn == 3:
                raise RuntimeError("crashed")
            return "x", 1.0, self.turn == 5, False, {}

    vec = SyncVectorEnv(env_ids=["x"] * 64, env_fns=[lambda i=i: Crashing(i) for i in range(64)])
    vec.reset()
    finished = 0
    try:
        for _ in range(5):
            finished += sum(bool(t) for t in vec.step(["x"] * 64)[2])
    except RuntimeError:
        pass
    return {"lost": 64 - finished, "of": 64}


# 10,000 episodes at once in one process, with a policy that takes 20 ms a turn.


def many_ours() -> dict[str, float]:
    from gem_core import Generation, Renderer, Rollout, tasks_for

    encoder = tokenizer()
    ids = tuple(encoder.encode("\\boxed{25}", add_special_tokens=False)) + (encoder.eos_token_id,)

    class Waiting:
        now = most = 0

        async def generate(self, prompt_ids: Any, sampling: Any) -> Generation:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.02)
            self.now -= 1
            return Generation(ids, (-0.5,) * len(ids))

    policy = Waiting()
    engine = Rollout(policy, Renderer(encoder), concurrency=10_000)
    before = megabytes()
    start, cpu = time.perf_counter(), time.process_time()
    episodes = engine.run_batch(tasks_for(GAME, range(10_000)))
    return {
        "finished": sum(not e.failed for e in episodes),
        "turns": sum(len(e.turns) for e in episodes),
        "at once": policy.most,
        "seconds": time.perf_counter() - start,
        "cpu seconds": time.process_time() - cpu,
        "megabytes": megabytes() - before,
    }


# Tokens: what a turn costs in our bookkeeping, against rendering and encoding the whole conversation each turn.


def tokenizer() -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        sys.path.insert(0, str(ROOT / "tests" / "support"))
        from byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    return AutoTokenizer.from_pretrained(ROOT / "gem_core" / "policies" / "tiny_model")


def tokens_ours() -> dict[str, Any]:
    from gem_core.rollout.renderer import Conversation, Renderer
    from gem_core.types import Message

    turns = 50
    encoder = tokenizer()
    renderer = Renderer(encoder)
    said = Message("user", "You see a door and a key. " * 8)
    text = "I take the key and then I open the door. " * 10
    action = tuple(encoder.encode(text, add_special_tokens=False)) + (renderer.turn_end or 0,)
    length = 0

    def ours() -> None:
        nonlocal length
        talk = Conversation(renderer)
        talk.begin([said])
        for _ in range(turns):
            talk.act(action, text)
            talk.say([said])
        length = len(talk.ids)

    def theirs() -> None:
        messages = [said.as_dict()]
        for _ in range(turns):
            messages += [{"role": "assistant", "content": text}, said.as_dict()]
            whole = encoder.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            encoder.encode(whole, add_special_tokens=False)

    ours()
    ours_seconds, theirs_seconds = best(ours, 5), best(theirs, 3)
    return {
        "tokenizer": type(encoder).__name__,
        "tokens": length,
        "tokens per cpu second": length / ours_seconds,
        "us per turn": ours_seconds / turns * 1e6,
        "us per turn, rendered whole": theirs_seconds / turns * 1e6,
    }


# The table.


def measure(name: str, python: str | Path, times: int = 1) -> Any:
    """What a function of this file returns in a fresh process; the lowest of some runs where it is one of numbers."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "adapters")]),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if name.endswith("_reference"):
        del environment["PYTHONPATH"]
    found = []
    for _ in range(times):
        command = [str(python), str(Path(__file__).resolve()), "--measure", name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return min(found, key=lambda f: f["seconds"]) if times > 1 else found[0]


class Table:
    """Rows as they are measured, each with whether its bar holds."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str, str, str]] = []

    def add(
        self, what: str, ours: str, reference: str, ratio: str, bar: str, holds: bool | None
    ) -> None:
        verdict = "" if holds is None else "holds" if holds else "**does not hold**"
        self.rows.append((what, ours, reference, ratio, bar, verdict))
        print(f"  {what}: {ours} | {reference} | {ratio} {verdict}", file=sys.stderr)

    def text(self) -> str:
        head = ("", "gem", "gem-llm 0.1.0", "ratio", "bar", "")
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])


def row_import(table: Table, theirs: Path) -> None:
    ours, reference = (
        measure("import_ours", sys.executable, 5),
        measure("import_reference", theirs, 3),
    )
    ratio = ours["seconds"] / reference["seconds"]
    shown = [
        f"{m['seconds'] * 1000:.0f} ms, {m['modules']:.0f} modules, {m['megabytes']:.0f} MB"
        for m in (ours, reference)
    ]
    table.add("import, processor time", *shown, f"1/{1 / ratio:.0f}", "at most 1/10", ratio <= 0.1)


def row_vector(table: Table, theirs: Path) -> None:
    for mode, bar in (("sync", 2), ("async", 5)):
        ours, reference = (
            measure(f"vector_{mode}_ours", sys.executable),
            measure(f"vector_{mode}_reference", theirs),
        )
        for unit in ("per cpu second", "per second"):
            ratio = ours[unit] / reference[unit]
            shown = [f"{m[unit] / 1000:.0f}k" for m in (ours, reference)]
            counts = unit == "per cpu second"
            table.add(
                f"steps {unit.replace('cpu', 'processor')}, {mode} vector, n=128, GuessTheNumber-hard",
                *shown,
                f"{ratio:.1f}x",
                f"at least {bar}x" if counts else "",
                ratio >= bar if counts else None,
            )


def row_history(table: Table, theirs: Path) -> None:
    ours, reference = measure("history_ours", sys.executable), measure("history_reference", theirs)
    for name in ("messages", "token deltas"):
        growth = ours[name]["late"] / ours[name]["early"]
        table.add(
            f"history, {name}: turn {LATE} against turn {EARLY}",
            f"{ours[name]['early']:.1f} to {ours[name]['late']:.1f} us",
            "",
            f"{growth:.1f}x",
            "at most 2x",
            growth <= 2,
        )
    for name in ("concat", "concat_with_action", "concat_chat_on_reset", "concat_chat"):
        ratio = ours[name]["late"] / reference[name]["late"]
        bar = name != "concat_chat"
        table.add(
            f"history, `{name}`{'' if bar else ' rendered as text'}: a step at turn {LATE}",
            f"{ours[name]['late']:.0f} us",
            f"{reference[name]['late']:.0f} us",
            f"1/{1 / ratio:.1f}",
            "at most 1/10" if bar else "",
            ratio <= 0.1 if bar else None,
        )


def row_slow(table: Table, theirs: Path) -> None:
    ours, reference = measure("slow_ours", sys.executable), measure("slow_reference", theirs)
    kept, reference_kept = (m["together"] / m["alone"] for m in (ours, reference))
    table.add(
        "63 environments of 10 ms and one of 1 s: what the 63 keep of their rate",
        f"{ours['together']:.0f} of {ours['alone']:.0f}/s",
        f"{reference['together']:.0f} of {reference['alone']:.0f}/s",
        f"{kept:.0%} against {reference_kept:.1%}",
        "at least 90%",
        kept >= 0.9,
    )


def row_crash(table: Table, theirs: Path) -> None:
    ours, reference = measure("crash_ours", sys.executable), measure("crash_reference", theirs)
    table.add(
        "one of 64 environments crashes: episodes lost",
        f"{ours['lost']}",
        f"{reference['lost']}",
        "",
        "exactly 1",
        ours["lost"] == 1,
    )


def row_many(table: Table, theirs: Path) -> None:
    ours = measure("many_ours", sys.executable)
    table.add(
        f"10,000 episodes at once, {ours['turns']} turns",
        f"{ours['seconds']:.1f} s ({ours['cpu seconds']:.1f} s processor), {ours['megabytes']:.0f} MB",
        "",
        f"{ours['at once']} at once",
        "all finish",
        ours["finished"] == 10_000 and ours["at once"] == 10_000,
    )


def row_tokens(table: Table, theirs: Path) -> None:
    ours = measure("tokens_ours", sys.executable)
    whole = ours["us per turn, rendered whole"]
    table.add(
        f"tokens: a turn of a conversation of 50 turns, {ours['tokens']} tokens, {ours['tokenizer']}",
        f"{ours['us per turn']:.0f} us, {ours['tokens per cpu second'] / 1e6:.1f}M tokens per processor second",
        f"{whole:.0f} us, rendered whole each turn",
        f"{whole / ours['us per turn']:.0f}x",
        "",
        None,
    )


ROWS = {
    "import": row_import,
    "vector": row_vector,
    "history": row_history,
    "slow": row_slow,
    "crash": row_crash,
    "many": row_many,
    "tokens": row_tokens,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(globals()[args.measure]()))
        return
    from reference_venv import reference_python

    theirs = reference_python()
    table = Table()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    for name in args.only.split(","):
        ROWS[name](table, theirs)
    print(
        f"\n{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f} at the start\n"
    )
    print(table.text())


if __name__ == "__main__":
    main()
