# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = ["gem[openrlhf,plot,transformers]>=0.2"]
# ///
"""GuessTheNumber in OpenRLHF: its train_ppo_ray, with per-turn advantages by any of gem's estimators.

    python examples/openrlhf_guess_the_number.py                                  # the tiny model, two GPUs
    python examples/openrlhf_guess_the_number.py --colocate                       # one GPU, trainer and vLLM taking turns
    python examples/openrlhf_guess_the_number.py --asynchronous --overwrite
    python examples/openrlhf_guess_the_number.py --advantage grpo --samples 8
    python examples/openrlhf_guess_the_number.py --model smollm2

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes.jsonl (every episode; `gem_core.records.file` reads it),
openrlhf.jsonl (all of OpenRLHF's numbers), starts.jsonl (the data set) and model/, the trained model.
A folder that holds metrics already is refused, unless --overwrite is given: then those files are replaced.
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

from gem_core import GemError
from gem_core.errors import ConfigError
from gem_core.policies import load_smollm2
from gem_core.policies.tiny import tiny_model_path
from gem_core.training.advantage import estimators
from gem_openrlhf import GemConfig, launch


@dataclass
class Args:
    model: str = "tiny"
    """`tiny` (ships with gem), `smollm2` (SmolLM2-135M-Instruct), or a model folder"""
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
    episodes: int | None = None
    """episodes per update; when not given, 128 for the tiny model and 256 for others"""
    samples: int = 2
    """episodes per start: OpenRLHF's n_samples_per_prompt; grpo and rloo need 2 at least"""
    learning_rate: float | None = None
    """of AdamW; when not given, 2e-3 for the tiny model and 1e-5 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    rows: int = 64
    """rows of tokens in one forward pass; fewer need less memory, the gradient is the same"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int = 24
    """tokens a turn may have"""
    max_length: int = 1024
    """tokens an episode may have, observations included: OpenRLHF's data.max_len"""
    asynchronous: bool = False
    """play the next batch while this one is trained on"""
    colocate: bool = False
    """share one GPU between training and vLLM; without it, one each"""
    correction: str = "off"
    """importance correction against vLLM's logprobs: `off`, `token` or `seq`"""
    attention: str = "sdpa"
    """the attention of the trained model"""
    zero_stage: int = 2
    """of DeepSpeed"""
    seed: int = 0
    """of the order of starts and of sampling"""
    out: str = "runs/openrlhf_guess_the_number"
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
    tiny = args.model == "tiny"
    args.episodes = args.episodes or (128 if tiny else 256)
    args.learning_rate = args.learning_rate or (2e-3 if tiny else 1e-5)
    return args


def check(args: Args) -> None:
    """Refuses what cannot work before anything heavy is loaded; gem and OpenRLHF check their own settings."""
    for name in ("updates", "episodes", "samples", "rows", "max_tokens", "max_length"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    rows = min(args.rows, args.episodes)
    if args.episodes % args.samples or args.episodes % rows:
        raise ConfigError(
            f"--episodes must be a multiple of --samples and of --rows; given: {args.episodes}, {args.samples} and {rows}"
        )
    estimators.get(args.advantage)
    if args.asynchronous and args.colocate:
        raise ConfigError("--asynchronous plays while it trains, so that the two cannot share a GPU; leave --colocate out")
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def find_model(args: Args) -> Path:
    """The model's folder, which OpenRLHF and vLLM load by themselves."""
    if args.model == "tiny":
        return tiny_model_path()
    if args.model == "smollm2":
        folder = Path(args.out) / "smollm2"
        for part in load_smollm2():
            part.save_pretrained(folder)
        return folder
    if not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {args.model!r}")
    return Path(args.model)


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
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    out = Path(args.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "episodes.jsonl", "curve.png", "openrlhf.jsonl", "starts.jsonl"):
        (out / name).unlink(missing_ok=True)

    # the environment, as OpenRLHF takes it: a data set of starts, each with all that is needed to play it
    assert args.episodes is not None
    spec = GemConfig(
        args.env,
        seeds=args.episodes // args.samples * args.updates,
        wrappers=args.wrappers,
        tools=args.tools,
        advantage=args.advantage,
        gamma=args.gamma,
        horizon=args.horizon or None,
        max_turn_tokens=args.max_tokens,
        record=str(out / "episodes.jsonl"),
        metrics=str(out / "openrlhf.jsonl"),
    )

    # the trainer: OpenRLHF's own flags, and nothing of gem in them
    settings = {
        "actor.model_name_or_path": find_model(args),
        "actor.num_gpus_per_node": 1,
        "actor.adam.lr": args.learning_rate,
        "actor.lr_scheduler": "constant",
        "actor.max_norm": args.max_grad_norm,
        "algo.advantage.is_correction_level": args.correction,
        "algo.kl.init_coef": 0,
        "ckpt.output_dir": out / "model",
        "ckpt.path": out / "checkpoints",
        "data.max_len": args.max_length,
        "ds.attn_implementation": args.attention,
        "ds.zero_stage": args.zero_stage,
        "rollout.batch_size": args.episodes // args.samples,
        "rollout.micro_batch_size": min(args.rows, args.episodes),
        "rollout.n_samples_per_prompt": args.samples,
        "rollout.temperature": args.temperature,
        "train.batch_size": args.episodes,
        "train.micro_batch_size": min(args.rows, args.episodes),
        "train.seed": args.seed,
        "vllm.gpu_memory_utilization": 0.3,
        "vllm.num_engines": 1,
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    flags += ["--vllm.enforce_eager"]
    if args.asynchronous:
        flags += ["--train.async_enable"]
    if args.colocate:
        flags += ["--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep"]

    # training
    began = time.time()
    finished = False
    try:
        launch(flags, spec, out / "starts.jsonl")
        finished = True
    except KeyboardInterrupt:
        print("\ninterrupted; writing what was done", file=sys.stderr)

    # what is left of it
    lines = (out / "openrlhf.jsonl").read_text(encoding="utf-8").splitlines() if (out / "openrlhf.jsonl").exists() else []
    metrics = [
        {
            "step": log["step"] - 1,
            "success": log.get("gem/success", 0.0),
            "return_mean": log.get("gem/return", 0.0),
            "turns_mean": log.get("gem/turns", 0.0),
            "tokens": log["gem/tokens"],
            "loss": log["policy_loss"],
            "grad_norm": log["actor_grad_norm"],
            "failed": log["gem/failed"] * args.episodes,
            "seconds": log["timing/step_total"],
        }
        for log in map(json.loads, lines)
    ]
    if metrics:
        (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
        draw_curve(out / "curve.png", metrics, f"{args.env}, {args.model}, {args.advantage} in OpenRLHF, seed {args.seed}")
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
