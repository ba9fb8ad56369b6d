"""Compare asynchronous rollout with a lock-step vector, on the same server and the same episodes.

    python benchmarks/async_rollout.py  # needs the extra transformers, and aiohttp
    python benchmarks/async_rollout.py --url http://host:30000 --model path  # an SGLang server

Every step of the environment sleeps: most steps briefly, some for long, as tools and remote
services do. The time depends on seed and turn only. In lock-step, a turn is one batch of
generations and one step of a vector, and every episode waits for the slowest. In asynchronous
rollout, each episode continues on its own. Generation is greedy, so both play the same episodes;
the benchmark checks this token by token. Without --url it starts a server with SGLang's HTTP
interface for the model that ships with gem, on the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gem_core import Env, register
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_core.rollout.engine import Rollout, tasks_for
from gem_core.rollout.renderer import Conversation, Renderer
from gem_core.types import FinishReason, Generation, Message, Sampling
from gem_execution.vector.factory import make_vec

SERVER = Path(__file__).parents[1] / "tests" / "adapters" / "rl2" / "sglang_server.py"
ENV = "benchmark:Uneven-v0"
SAMPLING = Sampling(temperature=0.0, max_tokens=12)


class Uneven(Env):
    """Ask for a number `turns` times; a `share` of the steps is slow."""

    execution = "thread"
    action_example = "5"

    def __init__(
        self, turns: int = 8, fast: float = 0.02, slow: float = 3.0, share: float = 0.05
    ) -> None:
        self.turns, self.fast, self.slow, self.share = turns, fast, slow, share

    def on_reset(self, options: Any) -> Any:
        return f"I am thinking of a whole number between 1 and 10. Game {self.seed}.", {}

    def on_step(self, action: str) -> Any:
        number = random.Random(f"{self.seed} {self.turn}").random()
        time.sleep(self.slow if number < self.share else self.fast)
        over = self.turn + 1 >= self.turns
        observation = f"My number is {'higher' if number < 0.5 else 'lower'} than that."
        return observation, float(over), over, False, {}


class SGLang:
    """Policy that samples from the `/generate` endpoint of a server."""

    def __init__(self, url: str, session: Any) -> None:
        self.url, self.session = url, session

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        params = {
            "temperature": sampling.temperature,
            "max_new_tokens": sampling.max_tokens,
            "no_stop_trim": True,
        }
        body = {"input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True}
        async with self.session.post(f"{self.url}/generate", json=body) as answer:
            answer.raise_for_status()
            meta = (await answer.json())["meta_info"]
        tokens = meta["output_token_logprobs"]
        finish = (
            FinishReason.STOP if meta["finish_reason"]["type"] == "stop" else FinishReason.LENGTH
        )
        return Generation(tuple(t[1] for t in tokens), tuple(t[0] for t in tokens), finish)


async def lock_step(
    policy: SGLang, renderer: Renderer, seeds: Sequence[int], kwargs: dict[str, Any]
) -> list[list[tuple[int, ...]]]:
    """Play all episodes turn by turn together; return the sampled ids per episode and turn."""
    sampled: list[list[tuple[int, ...]]] = [[] for _ in seeds]
    with make_vec(ENV, len(seeds), mode="async", autoreset="disabled", env_kwargs=kwargs) as vector:
        observations, _ = vector.reset(seed=list(seeds))
        conversations = [Conversation(renderer) for _ in seeds]
        for conversation, text in zip(conversations, observations):
            conversation.begin([Message("user", text)])
        running = list(range(len(seeds)))
        while running:
            generations = await asyncio.gather(
                *(policy.generate(conversations[i].ids, SAMPLING) for i in running)
            )
            actions = {}
            for i, generation in zip(running, generations):
                actions[i] = renderer.decode(generation.ids)
                conversations[i].act(generation.ids, actions[i])
                sampled[i].append(generation.ids)
            batch = vector.step(actions)
            for i, text in zip(running, batch.observations):
                conversations[i].say([Message("user", text)])
            running = [i for i, over in zip(running, batch.terminations) if not over]
    return sampled


async def asynchronous(
    policy: SGLang, renderer: Renderer, seeds: Sequence[int], kwargs: dict[str, Any]
) -> list[list[tuple[int, ...]]]:
    """Play each episode on its own; return the sampled ids per episode and turn."""
    engine = Rollout(policy, renderer, sampling=SAMPLING, concurrency=len(seeds))
    with engine:
        episodes = await engine.batch(tasks_for(ENV, seeds, env_kwargs=kwargs))
    assert not any(e.failed for e in episodes), [e for e in episodes if e.failed]
    return [[t.action_ids for t in e.turns] for e in episodes]


async def measure(args: argparse.Namespace, url: str) -> None:
    import aiohttp

    if args.model:
        from gem_core.policies.tiny import load_folder

        _, tokenizer = load_folder(args.model, "--model")
    else:
        _, tokenizer = load_tiny()
    renderer = Renderer(tokenizer)
    kwargs = {"turns": args.turns, "fast": args.fast, "slow": args.slow, "share": args.share}
    register(ENV, Uneven, replace=True)
    seeds = range(args.episodes)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        policy = SGLang(url, session)
        # warm up: the first request is the slowest
        await policy.generate(renderer.start([Message("user", "hello")]), SAMPLING)
        seconds, sampled = {}, {}
        for name, play in (("lock-step vector", lock_step), ("asynchronous", asynchronous)):
            began = time.perf_counter()
            sampled[name] = await play(policy, renderer, seeds, kwargs)
            seconds[name] = time.perf_counter() - began
    equal = sum(a == b for a, b in zip(*sampled.values()))
    ratio = seconds["lock-step vector"] / seconds["asynchronous"]
    print(
        f"{args.episodes} episodes of {args.turns} turns; "
        f"a step takes {args.fast} s, {args.share:.0%} of the steps take {args.slow} s\n"
    )
    print("| rollout | seconds | episodes per second |")
    print("|---|---|---|")
    for name, elapsed in seconds.items():
        print(f"| {name} | {elapsed:.1f} | {args.episodes / elapsed:.2f} |")
    print(
        f"\nasynchronous rollout is {ratio:.1f} times as fast; "
        f"{equal} of {args.episodes} episodes are equal token by token"
    )
    if equal < args.episodes:
        sys.exit("the two rollouts did not play the same episodes")


def start_server() -> tuple[subprocess.Popen[bytes], str]:
    """Start a server for the model that ships with gem; return (process, URL)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, SERVER, "--port", str(port), "--model", tiny_model_path()]
    )
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return process, url
        except OSError:
            time.sleep(0.2)
    sys.exit("the server exited before it was ready")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--fast", type=float, default=0.02, help="seconds of most steps")
    parser.add_argument("--slow", type=float, default=3.0, help="seconds of slow steps")
    parser.add_argument("--share", type=float, default=0.05, help="share of slow steps")
    parser.add_argument("--url", help="address of a running server")
    parser.add_argument("--model", help="model folder of that server, for the tokenizer")
    args = parser.parse_args()
    if args.url:
        asyncio.run(measure(args, args.url))
        return
    process, url = start_server()
    try:
        asyncio.run(measure(args, url))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
