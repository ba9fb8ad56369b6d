"""Measures of `throughput.py`: each prints its numbers as JSON, in a process of its own.

python benchmarks/throughput_measures.py vector_sync_ours
"""

from __future__ import annotations

import asyncio
import json
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
    """Return the shortest time of several runs: other load only adds time."""
    seconds = []
    for _ in range(times):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds)


def megabytes() -> float:
    """Return the peak memory of this process."""
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


# Vectors: the same guesses on both sides, with autoreset in the same step.


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


# History: microseconds per step around turn 10 and around turn 2000.


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

    times = {}
    for name, env in {
        "concat": Concat(Endless()),
        "concat_with_action": Concat(Endless(), actions=True),
        "concat_chat_on_reset": ConcatChatOnReset(Endless()),
        "messages": ConcatChat(Endless()),
        "concat_chat": ConcatChat(Endless(), template=chatml),
    }.items():
        times[name] = per_step(lambda env=env: env.reset(seed=0), lambda env=env: env.step(ACTION))  # type: ignore[misc]
    renderer = Renderer(tokenizer())
    ids = tuple(renderer.tokenizer.encode(ACTION, add_special_tokens=False))
    conversation = Conversation(renderer)

    def start() -> None:
        nonlocal conversation
        conversation = Conversation(renderer)
        conversation.begin([Message("user", OBSERVATION)])

    def step() -> None:
        conversation.act(ids, ACTION)
        conversation.say([Message("user", OBSERVATION)])

    times["token deltas"] = per_step(start, step)
    return times


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

    times = {}
    for name in ("concat", "concat_with_action", "concat_chat_on_reset", "concat_chat"):
        wrapped = WRAPPER_FACTORY[name](Endless(), tokenizer=Template())
        times[name] = per_step(
            lambda env=wrapped: env.reset(), lambda env=wrapped: env.step(ACTION)
        )  # type: ignore[misc]
    return times


# Steps per second of 63 environments of 10 ms, alone and together with one of 1 s.

SECONDS = 4.0


def slow_ours() -> dict[str, float]:
    from gem_core.env.base import Env
    from gem_execution.vector.async_env import AsyncVectorEnv

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


# One of 64 environments raises in its third step: how many of the 64 episodes are lost?


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


# 10,000 concurrent episodes in one process, with a policy that takes 20 ms per turn.


def many_ours() -> dict[str, float]:
    from gem_core import Generation, Renderer, Rollout, tasks_for

    encoder = tokenizer()
    ids = tuple(encoder.encode("\\boxed{25}", add_special_tokens=False)) + (encoder.eos_token_id,)

    class Waiting:
        running = maximum = 0

        async def generate(self, prompt_ids: Any, sampling: Any) -> Generation:
            self.running += 1
            self.maximum = max(self.maximum, self.running)
            await asyncio.sleep(0.02)
            self.running -= 1
            return Generation(ids, (-0.5,) * len(ids))

    policy = Waiting()
    engine = Rollout(policy, Renderer(encoder), concurrency=10_000)
    before = megabytes()
    start, cpu = time.perf_counter(), time.process_time()
    episodes = engine.run_batch(tasks_for(GAME, range(10_000)))
    return {
        "finished": sum(not e.failed for e in episodes),
        "turns": sum(len(e.turns) for e in episodes),
        "concurrent": policy.maximum,
        "seconds": time.perf_counter() - start,
        "cpu seconds": time.process_time() - cpu,
        "megabytes": megabytes() - before,
    }


# Tokens: the cost of a turn, compared with rendering and encoding the whole conversation each turn.


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
    observation = Message("user", "You see a door and a key. " * 8)
    text = "I take the key and then I open the door. " * 10
    action = tuple(encoder.encode(text, add_special_tokens=False)) + (renderer.turn_end or 0,)
    length = 0

    def ours() -> None:
        nonlocal length
        conversation = Conversation(renderer)
        conversation.begin([observation])
        for _ in range(turns):
            conversation.act(action, text)
            conversation.say([observation])
        length = len(conversation.ids)

    def rendered_whole() -> None:
        messages = [observation.as_dict()]
        for _ in range(turns):
            messages += [{"role": "assistant", "content": text}, observation.as_dict()]
            prompt = encoder.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            encoder.encode(prompt, add_special_tokens=False)

    ours()
    ours_seconds, whole_seconds = best(ours, 5), best(rendered_whole, 3)
    return {
        "tokenizer": type(encoder).__name__,
        "tokens": length,
        "tokens per cpu second": length / ours_seconds,
        "us per turn": ours_seconds / turns * 1e6,
        "us per turn, rendered whole": whole_seconds / turns * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
