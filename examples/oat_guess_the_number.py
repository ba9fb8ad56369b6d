# /// script
# requires-python = ">=3.10,<3.11"
# dependencies = ["gem[oat-llm,plot]>=0.2"]
# ///
"""GuessTheNumber in oat: its multi-turn actor and learner, with per-turn advantages by any of gem's estimators.

    python examples/oat_guess_the_number.py                                       # the tiny model, one GPU
    python examples/oat_guess_the_number.py --advantage gae                       # PPO with oat's turn-level critic
    python examples/oat_guess_the_number.py --advantage grpo --samples 8
    python examples/oat_guess_the_number.py --model Qwen/Qwen3-1.7B-Base --gpus 8 --horizon 2,3,4@20

oat needs Linux on x86_64, Python 3.10 and a GPU. How it runs on a CPU, for tests, is said in adapters/gem_oat/README.md.

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes-N.jsonl (every episode of actor N; `gem_core.records.file`
reads it). A folder that holds metrics already is refused, unless --overwrite is given: then those files are replaced.
Ctrl-C ends the training, not the work: curve, metrics and episodes of what was done are written.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import launchpad
from oat.algorithms.ppo import PPOArgs

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_core.policies import tiny_model_path
from gem_core.training.advantage import estimators
from gem_oat import GemConfig


@dataclass
class Args:
    model: str = "tiny"
    """`tiny` (ships with gem), or what transformers loads: a model folder, or a name on the hub"""
    env: str = "game:GuessTheNumber-v0-easy"
    """the environment, or a mixture of several"""
    wrappers: str = ""
    """wrappers around it, innermost first, as in `react,turn_limit(max_turns=3)`"""
    tools: str = ""
    """tools the model may call, as in `python`, or `python(seconds=2),search(index='my_index')`"""
    advantage: str = "rebn"
    """the estimator: any registered one; with gae, oat trains a critic beside the policy"""
    gamma: float = 0.9
    """discount per turn"""
    horizon: str = ""
    """turns an episode may have: `4`, or `2,3,4@20` to go on to the next number every 20 updates; empty: the environment's own"""
    updates: int = 60
    """optimizer steps"""
    turns: int | None = None
    """turns per update and GPU, which is how oat counts; when not given, 256 for the tiny model and 512 for others"""
    samples: int = 1
    """episodes per start, 2 at least for estimators that compare them"""
    concurrency: int = 32
    """episodes in play at once, for each GPU; with more of them, more of a batch is sampled from older weights"""
    learning_rate: float | None = None
    """of AdamW; when not given, 1e-3 for the tiny model and 1e-6 for others"""
    critic_learning_rate: float | None = None
    """of the critic's; when not given, 2e-3 for the tiny model and 5e-6 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int | None = None
    """tokens a turn may have; when not given, 24 for the tiny model and 1024 for others"""
    max_context: int = 2048
    """tokens of a prompt and its answer"""
    gpus: int = 1
    """GPUs of this machine; each plays and learns"""
    seed: int = 0
    """of the order of starts and of the critic; oat seeds vLLM by the clock"""
    out: str = "runs/oat_guess_the_number"
    """folder for what is written"""
    overwrite: bool = False
    """replace the files of an earlier run"""


def parse_args() -> Args:
    hints = get_type_hints(Args)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        declared = next(i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: "))
        text = lines[declared + 1].strip().strip('"')  # the string under the field is its help
        flag = f"--{field.name.replace('_', '-')}"
        if hints[field.name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default, help=text)
        else:
            kind = next(iter(get_args(hints[field.name])), hints[field.name])
            shown = "" if field.default in ("", None) else f" (default: {field.default})"
            parser.add_argument(
                flag, type=kind, default=field.default, metavar=kind.__name__, help=(text + shown).replace("%", "%%")
            )
    args = Args(**vars(parser.parse_args()))
    small = {"turns": 256, "learning_rate": 1e-3, "critic_learning_rate": 2e-3, "max_tokens": 24}
    large = {"turns": 512, "learning_rate": 1e-6, "critic_learning_rate": 5e-6, "max_tokens": 1024}
    for name, value in (small if args.model == "tiny" else large).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def check(args: Args) -> None:
    """Refuses what cannot work before anything heavy is loaded; gem and oat check their own settings."""
    for name in ("updates", "turns", "gpus", "max_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    estimators.get(args.advantage)
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def draw_curve(path: Path, metrics: Sequence[dict[str, Any]], title: str) -> None:
    """Success over updates as a PNG."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print(f"no {path}: drawing needs matplotlib, pip install 'gem[plot]'")
        return
    success = [m["success"] for m in metrics]
    mean = [sum(success[max(0, i - 9) : i + 1]) / len(success[max(0, i - 9) : i + 1]) for i in range(len(success))]
    steps = [m["step"] for m in metrics]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, success, color="#9ecae1", linewidth=1, label="each update")
    axes.plot(steps, mean, color="#08519c", linewidth=2, label="mean of the last 10")
    axes.set(title=title, xlabel="update", ylabel="success", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def train(args: Args) -> bool:
    """Everything, in order. False where it was cut short."""
    check(args)
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    log = out / "oat.jsonl"
    for path in (out / "metrics.jsonl", out / "curve.png", log, *out.glob("episodes-*.jsonl")):
        path.unlink(missing_ok=True)

    # the environment, as oat's actors play it
    batch = args.turns * args.gpus
    spec = GemConfig(
        args.env,
        seeds=batch * args.updates,
        wrappers=args.wrappers,
        tools=args.tools,
        advantage=args.advantage,
        gamma=args.gamma,
        horizon=args.horizon or None,
        samples=args.samples,
        concurrency=args.concurrency,
        max_turn_tokens=args.max_tokens,
        record=str(out / "episodes-{rank}.jsonl"),
        metrics=str(log),
    )

    # the trainer: oat's own settings, those that follow from the environment among them
    tiny = args.model == "tiny"
    config = PPOArgs(
        pretrain=str(tiny_model_path()) if tiny else args.model,
        gpus=args.gpus,
        collocate=True,
        bf16=not tiny,
        flash_attn=not tiny,
        beta=0.0,
        temperature=args.temperature,
        tis_c=2.0 if args.temperature == 1.0 else None,  # vLLM's logprobs are those before temperature
        max_model_len=args.max_context,
        max_train=batch * args.updates,
        rollout_batch_size=batch,
        rollout_batch_size_per_device=args.turns,
        train_batch_size=batch,
        learning_rate=args.learning_rate,
        critic_learning_rate=args.critic_learning_rate,
        lr_scheduler="constant",
        max_norm=args.max_grad_norm,
        shm_size_mb=500,
        master_addr="127.0.0.1",
        save_path=str(out / "trainer"),
        seed=args.seed,
        **spec.arguments(),
    )
    program, resources = spec.program(config)

    # training
    began = time.time()
    try:
        launchpad.launch(program, launch_type=config.launch_type, local_resources=resources, terminal="current_terminal")
    except KeyboardInterrupt:
        print("\ninterrupted; writing what was done", file=sys.stderr)

    # what is left of it
    metrics = [
        {
            "step": int(line["update"]),
            "success": line.get("gem/success", 0.0),
            "return_mean": line["gem/return"],
            "turns_mean": line["gem/turns"],
            "episodes": line["gem/episodes"],
            "loss": line["train/pg_loss"],
            "critic_loss": line.get("train/critic_loss"),
            "grad_norm": line["train/policy_grad_norm"],
            "failed": line["gem/failed"],
            "older_weights": line["gem/older_weights"],
            "seconds": line["actor/total_time"] + line["train/total_time"],
        }
        for line in map(json.loads, log.read_text(encoding="utf-8").splitlines() if log.exists() else ())
        if "gem/return" in line
    ]
    if metrics:
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
        draw_curve(out / "curve.png", metrics, f"{args.env}, {args.model}, {args.advantage} in oat, seed {args.seed}")
        first, last = [m["success"] for m in metrics[:3]], [m["success"] for m in metrics[-10:]]
        print(f"success, mean of the first {len(first)} updates: {sum(first) / len(first):.1%}")
        print(f"success, mean of the last {len(last)} updates: {sum(last) / len(last):.1%}")
    print(f"{time.time() - began:.0f} s; written to {out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    return len(metrics) == args.updates


if __name__ == "__main__":
    try:
        done = train(parse_args())
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if done else 130)
