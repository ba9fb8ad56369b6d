# /// script
# requires-python = ">=3.10,<3.14"
# dependencies = ["gem[rl2,transformers]>=0.2"]
# ///
"""RL2 on an environment whose steps take uneven time: no episode waits for another, and with RL2's main branch no update does.

    torchrun --nproc_per_node=1 examples/rl2_async.py
    torchrun --nproc_per_node=1 examples/rl2_async.py --slow 0.2 --seconds 5
    python tests/adapters/rl2/on_cpu.py examples/rl2_async.py                  # no GPU: with stand-ins

The environment is GuessTheNumber behind a wrapper that sleeps in a share of the steps, as a tool or a remote service would. Each
rollout is reported with the seconds its steps slept in all and the seconds it took. With RL2's main branch, `partial_rollout`
lets an update begin when enough episodes are done; the others pause where they are, and go on with the new weights.

Writes to --out: metrics.jsonl (a line per update), episodes.jsonl (every episode). A folder that holds metrics is replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
import wandb

from gem_core import Env, GemError, Wrapper
from gem_core.env.wrapper_stack import register_wrapper
from gem_core.policies.tiny import tiny_model_path
from gem_rl2 import GemPPOTrainer, GemConfig, compose, start_process_group, which_rl2

slept: list[float] = []


class Uneven(Wrapper):
    """Sleeps in some steps, chosen by the episode's own generator, so that an episode can be repeated."""

    execution = "thread"

    def __init__(self, env: Env, slow: float = 0.1, seconds: float = 2.0) -> None:
        super().__init__(env)
        self.slow, self.seconds = slow, seconds

    def on_step(self, action: str) -> Any:
        if self.rng.random() < self.slow:
            time.sleep(self.seconds)
            slept.append(self.seconds)
        return (yield self.env.step(action))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(tiny_model_path()), help="a model folder (default: the one that ships with gem)")
    parser.add_argument("--slow", type=float, default=0.1, help="the share of steps that sleep (default: 0.1)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for how long (default: 2.0)")
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--episodes", type=int, default=64, help="per update (default: 64)")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--max-length", type=int, default=16384, help="tokens a GPU takes in one forward pass of the loss")
    parser.add_argument("--out", default="runs/rl2_async")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        (out / name).unlink(missing_ok=True)

    # the environment
    register_wrapper("uneven", Uneven)
    spec = GemConfig(
        "game:GuessTheNumber-v0-easy",
        seeds=args.episodes * args.updates,
        wrappers=[("uneven", {"slow": args.slow, "seconds": args.seconds})],
        gamma=0.9,
        max_turn_tokens=24,
        concurrency=args.episodes * 2,
        record=str(out / "episodes.jsonl"),
    )

    # the trainer
    start_process_group()
    settings = [
        f"actor.model_name={args.model}",
        f"actor.max_length_per_device={args.max_length}",
        "trainer.experiment_name=async",
        f"trainer.save_dir={out / 'model'}",
        "trainer.use_wandb=false",
    ]
    if which_rl2() == "main":
        settings += [
            f"actor.optimizer.lr={args.learning_rate}",
            f"rollout.train.prompts_per_rollout={args.episodes}",
            "rollout.train.partial_rollout=true",
            f"trainer.total_steps={args.updates}",
        ]
    else:
        settings += [f"actor.lr={args.learning_rate}", f"train_data.prompts_per_rollout={args.episodes}"]
    trainer = GemPPOTrainer(compose(settings), spec)
    logged: dict[int, dict[str, Any]] = defaultdict(dict)
    waited = [0.0]

    def log(values: dict[str, Any], step: int) -> None:  # where RL2 reports to
        logged[step].update(values)
        if "timing/rollout" in values:
            logged[step]["slept"] = sum(slept) - waited[0]
            waited[0] = sum(slept)

    wandb.log = log
    trainer.run()
    if dist.get_rank() != 0:
        return
    with (out / "metrics.jsonl").open("w", encoding="utf-8") as lines:
        for step, values in sorted(logged.items()):
            line = {
                "step": step - 1,
                "success": values.get("gem/success/train"),
                "slept": values["slept"],
                "rollout_seconds": values["timing/rollout"],
                "drift": values.get("actor/llm_old_approx_kl"),
            }
            lines.write(json.dumps(line) + "\n")
            print(
                f"update {step}: success {line['success']:.1%}; steps slept {line['slept']:.1f} s, the rollout took "
                f"{line['rollout_seconds']:.1f} s"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        train(parse_args())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
