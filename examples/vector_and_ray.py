"""Step many environments as one vector, and play a batch of episodes, in this process or on a Ray cluster.

python examples/vector_and_ray.py
python examples/vector_and_ray.py --mode async --num-envs 128
python examples/vector_and_ray.py --mode ray --hosts 4        # needs the extra `ray`
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
    """steps of the whole vector"""
    mode: Literal["sync", "async", "ray"] = "sync"
    """one after the other, all at once, or on a Ray cluster"""
    hosts: int = 2
    """Ray actors that hold the environments, with --mode ray"""
    seed: int = 0
    """the seed of the first environment; environment i starts from seed + i"""


def step_vector(args: Args) -> None:
    """Step a vector with random actions; finished episodes start again in the same step."""
    more = {"hosts": args.hosts} if args.mode == "ray" else {}
    players = make_vec(args.env, args.num_envs)  # only to sample legal actions from
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
    print(
        f"vector: {args.num_envs * args.steps / seconds:,.0f} steps/s, {episodes} episodes, mean return {total / episodes:.3f}"
    )


def play_batch(args: Args) -> None:
    """Play episodes with the engine that trainers use. Only `make_env` knows about the cluster."""
    tasks = tasks_for(args.env, range(args.seed, args.seed + args.num_envs))
    if args.mode != "ray":
        with Rollout(RandomPlayer()) as rollout:
            episodes = rollout.run_batch(tasks)
    else:
        from gem_execution.ray_hosts import EnvHosts

        # an episode whose host dies is played again on another one
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
