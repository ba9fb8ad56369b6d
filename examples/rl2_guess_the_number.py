# /// script
# requires-python = ">=3.10,<3.14"
# dependencies = ["gem[plot,rl2,transformers]>=0.2"]
# ///
"""GuessTheNumber in RL2: its PPOTrainer, with per-turn advantages by any of gem's estimators.

    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py                      # the tiny model, one GPU
    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --advantage grpo --samples 8
    torchrun --nproc_per_node=8 examples/rl2_guess_the_number.py --model path/of/a/model
    torchrun --nproc_per_node=1 examples/rl2_guess_the_number.py --set actor.kl.coef=0.01 --set actor.kl.type=loss
    python tests/adapters/rl2/on_cpu.py examples/rl2_guess_the_number.py              # no GPU: minutes, with stand-ins

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes.jsonl (every episode; `gem_core.records.file` reads it), and
the trained model. A folder that holds metrics already is refused, unless --overwrite is given: then they are replaced.
Ctrl-C ends the training, not the work: curve, metrics and episodes of what was done are written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch.distributed as dist
import wandb

from gem_core import GemError
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies.tiny import tiny_model_path
from gem_core.training.advantage import estimators
from gem_core.training.metrics_file import MetricsFile
from gem_eval.curves import draw_curves
from gem_rl2 import GemPPOTrainer, GemConfig, compose, start_process_group, which_rl2


@dataclass
class Args:
    model: str = "tiny"
    """`tiny` (ships with gem), or a model folder"""
    env: str = "game:GuessTheNumber-v0-easy"
    """the environment, or a mixture of several"""
    wrappers: str = ""
    """wrappers around it, innermost first, as in `react,turn_limit(max_turns=3)`"""
    tools: str = ""
    """tools the model may call, as in `python`, or `python(seconds=2),search(index='my_index')`"""
    advantage: str = "rebn"
    """the estimator: any registered one that needs no critic"""
    gamma: float = 0.9
    """discount per turn"""
    horizon: str = ""
    """turns an episode may have: `4`, or `2,3,4@20` to go on to the next number every 20 updates; empty: the environment's own"""
    updates: int = 60
    """optimizer steps"""
    episodes: int = 128
    """episodes per update"""
    samples: int = 2
    """episodes per start: RL2's responses_per_prompt"""
    learning_rate: float | None = None
    """of AdamW; when not given, 2e-3 for the tiny model and 1e-6 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    max_length: int = 16384
    """tokens a GPU takes in one forward pass of the loss; no row may be longer"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int = 24
    """tokens a turn may have"""
    seed: int = 0
    """of the order of starts; sampling is SGLang's"""
    set: list[str] = field(default_factory=list)
    """a setting of RL2's own, as on its command line; may be given several times"""
    out: str = "runs/rl2_guess_the_number"
    """folder for what is written"""
    overwrite: bool = False
    """replace the files of an earlier run"""


def parse_args() -> Args:
    hints = get_type_hints(Args)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in fields(Args):
        declared = next(i for i, line in enumerate(lines) if line.startswith(f"    {each.name}: "))
        text = lines[declared + 1].strip().strip('"')  # the string under the field is its help
        flag = f"--{each.name.replace('_', '-')}"
        if hints[each.name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=each.default, help=text)
        elif hints[each.name] == list[str]:
            parser.add_argument(flag, action="append", default=[], metavar="KEY=VALUE", help=text)
        else:
            kind = next(iter(get_args(hints[each.name])), hints[each.name])
            shown = "" if each.default in ("", None) else f" (default: {each.default})"
            parser.add_argument(
                flag, type=kind, default=each.default, metavar=kind.__name__, help=(text + shown).replace("%", "%%")
            )
    args = Args(**vars(parser.parse_args()))
    args.learning_rate = args.learning_rate or (2e-3 if args.model == "tiny" else 1e-6)
    return args


def check(args: Args) -> None:
    """Refuses what cannot work before anything heavy is loaded; gem and RL2 check their own settings."""
    for name in ("updates", "episodes", "samples", "max_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    if args.episodes % args.samples:
        raise ConfigError(f"--episodes must be a multiple of --samples; given: {args.episodes} and {args.samples}")
    estimators.get(args.advantage)
    if args.model != "tiny" and not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny' or a model folder with a config.json; given: {args.model!r}")
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def settings(args: Args, out: Path) -> list[str]:
    """RL2's own settings, as on its command line, and nothing of gem in them."""
    prompts, tokens = args.episodes // args.samples, args.max_tokens
    common = [
        f"actor.model_name={tiny_model_path() if args.model == 'tiny' else args.model}",
        f"actor.max_length_per_device={args.max_length}",
        f"actor.max_grad_norm={args.max_grad_norm}",
        f"trainer.save_dir={out / 'model'}",
        "trainer.project=gem",
        "trainer.experiment_name=guess_the_number",
        "trainer.use_wandb=false",
    ]
    if which_rl2() == "main":
        of_version = [
            f"actor.optimizer.lr={args.learning_rate}",
            "actor.scheduler.name=constant",
            "~actor.scheduler.min_lr",
            f"rollout.train.prompts_per_rollout={prompts}",
            f"rollout.train.responses_per_prompt={args.samples}",
            f"rollout.train.sampling_params.temperature={args.temperature}",
            f"rollout.train.sampling_params.max_new_tokens={tokens}",
            "rollout.train.dynamic_filtering=false",
            f"trainer.total_steps={args.updates}",
        ]
    else:
        of_version = [
            f"actor.lr={args.learning_rate}",
            f"train_data.prompts_per_rollout={prompts}",
            f"train_data.responses_per_prompt={args.samples}",
            f"rollout.train_sampling_params.temperature={args.temperature}",
            f"rollout.train_sampling_params.max_new_tokens={tokens}",
            "rollout.dynamic_filtering=false",
        ]
    return [*common, *of_version, *args.set]


def train(args: Args) -> bool:
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    first_rank = int(os.environ.get("RANK", "0")) == 0
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if first_rank:
        for name in ("metrics.jsonl", "episodes.jsonl", "curve.png"):
            (out / name).unlink(missing_ok=True)

    # the environment: RL2 makes an update of each `episodes // samples` starts, so that their number sets the number of updates
    spec = GemConfig(
        args.env,
        seeds=range(args.seed * 10**6, args.seed * 10**6 + args.episodes // args.samples * args.updates),
        wrappers=args.wrappers,
        tools=args.tools,
        advantage=args.advantage,
        gamma=args.gamma,
        horizon=args.horizon or None,
        max_turn_tokens=args.max_tokens,
        record=str(out / "episodes.jsonl"),
    )

    # the trainer
    start_process_group()
    trainer = GemPPOTrainer(compose(settings(args, out)), spec)
    logged: dict[int, dict[str, Any]] = defaultdict(dict)
    wandb.log = lambda values, step: logged[step].update(values)  # where RL2 reports to

    # training
    began = time.time()
    finished = False
    try:
        trainer.run()
        finished = True
    except KeyboardInterrupt:
        print("\ninterrupted; writing what was done", file=sys.stderr)
    dist.destroy_process_group()
    if not first_rank:
        return finished

    # what is left of it
    metrics = [
        {
            "step": step - 1,
            "success": log.get("gem/success/train", 0.0),
            "return_mean": log["gem/return/train"],
            "turns_mean": log["gem/turns/train"],
            "loss": log["actor/loss"],
            "grad_norm": log["actor/grad_norm"],
            "failed": log["gem/failed/train"] * args.episodes,
            "seconds": log["timing/rollout"] + log["timing/update_actor"] + log.get("timing/update_rollout", 0.0),
        }
        for step, log in sorted(logged.items())
        if "gem/return/train" in log and "actor/loss" in log
    ]
    if metrics:
        written = MetricsFile(out, overwrite=True)
        for line in metrics:
            written.write(**line)
        try:
            title = f"{args.env}, {Path(args.model).name}, {args.advantage} in RL2, seed {args.seed}"
            draw_curves({"mean of 10 updates": [out]}, out / "curve.png", smooth=10, title=title)
        except MissingDependencyError as error:
            print(f"no curve.png: {error}")
        first, last = [m["success"] for m in metrics[:3]], [m["success"] for m in metrics[-10:]]
        print(f"success, mean of the first {len(first)} updates: {sum(first) / len(first):.1%}")
        print(f"success, mean of the last {len(last)} updates: {sum(last) / len(last):.1%}")
    print(f"{time.time() - began:.0f} s; written to {out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    return finished


if __name__ == "__main__":
    try:
        done = train(parse_args())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if done else 130)
