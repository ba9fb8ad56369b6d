"""Step a vector of environments and play a batch of episodes, locally or on a Ray cluster.

python examples/vector_and_ray.py
python examples/vector_and_ray.py --mode async --num-envs 128
python examples/vector_and_ray.py --mode ray --hosts 4  # needs the extra `ray`
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import tyro

from gem_core import Limits, RandomPlayer, Rollout, make_vec, tasks_for


@dataclass
class Args:
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture"""
    num_envs: int = 16
    """environments in the vector"""
    steps: int = 50
    """steps of the vector"""
    mode: Literal["sync", "async", "ray"] = "sync"
    """step in turn, concurrently, or on a Ray cluster"""
    hosts: int = 2
    """Ray actors that hold the environments, with --mode ray"""
    seed: int = 0
    """the seed of the first environment; environment i gets seed + i"""


def step_vector(args: Args) -> None:
    """Step a vector with random actions; an ended episode resets in the same step."""
    more = {"hosts": args.hosts} if args.mode == "ray" else {}
    players = make_vec(args.env, args.num_envs)  # only samples legal actions
    players.reset(seed=args.seed)
    with make_vec(args.env, args.num_envs, mode=args.mode, autoreset="same_step", **more) as vector:
        vector.reset(seed=args.seed)
        episodes, total, start = 0, 0.0, time.perf_counter()
        for _ in range(args.steps):
            actions = [env.sample_action() for env in players.envs if env is not None]
            _, rewards, terminations, truncations, _ = vector.step(actions)
            episodes += sum(a or b for a, b in zip(terminations, truncations))
            total += sum(rewards)
        seconds = time.perf_counter() - start
    rate = args.num_envs * args.steps / seconds
    mean_return = total / episodes
    print(f"vector: {rate:,.0f} steps/s, {episodes} episodes, mean return {mean_return:.3f}")


def play_batch(args: Args) -> None:
    """Play episodes with the engine of the trainers; only `make_env` differs on a cluster."""
    tasks = tasks_for(args.env, range(args.seed, args.seed + args.num_envs))
    if args.mode != "ray":
        with Rollout(RandomPlayer()) as rollout:
            episodes = rollout.run_batch(tasks)
    else:
        from gem_execution.ray_hosts import EnvHosts

        # an episode whose host dies is retried on another host
        with (
            EnvHosts(args.hosts) as hosts,
            Rollout(RandomPlayer(), make_env=hosts.make_env, limits=Limits(retries=2)) as rollout,
        ):
            episodes = rollout.run_batch(tasks)
    failed = sum(episode.failed for episode in episodes)
    success = sum(bool(episode.success) for episode in episodes) / len(episodes)
    print(f"batch: {len(episodes)} episodes, {failed} failed, success {success:.1%}")


if __name__ == "__main__":
    arguments = tyro.cli(Args)
    step_vector(arguments)
    play_batch(arguments)
