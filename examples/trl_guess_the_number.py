# /// script
# requires-python = ">=3.11"
# dependencies = ["gem[plot,transformers,trl]>=0.2"]
# ///
"""GuessTheNumber in TRL: its GRPOTrainer, with per-turn advantages by any of gem's estimators.

    python examples/trl_guess_the_number.py                                  # the tiny model, CPU, minutes
    python examples/trl_guess_the_number.py --seed 1 --overwrite
    python examples/trl_guess_the_number.py --advantage grpo --samples 8
    python examples/trl_guess_the_number.py --model smollm2 --vllm --lessons 10    # SmolLM2-135M-Instruct, one GPU

A model that hardly ever writes an action in the environment's format has nothing to learn from. --lessons first shows it the
format: it imitates a player who makes legal moves at random.

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes.jsonl (every episode; `gem_core.records.file` reads it).
A folder that holds metrics already is refused, unless --overwrite is given: then those three files are replaced.
Ctrl-C ends the training, not the work: curve, metrics and episodes of what was done are written.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout functions are announced as experimental at every start

import torch
from trl import GRPOConfig

from gem_core import GemError, RandomPlayer, Renderer, Rollout, tasks_for, token_sequences
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies import load_smollm2, load_tiny
from gem_core.policies.tiny import load_folder
from gem_core.training.advantage import estimators
from gem_core.training.demonstrations import tokenised
from gem_core.training.metrics_file import MetricsFile
from gem_eval.curves import draw_curves
from gem_trl import GemGRPOTrainer, GemConfig


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
    lessons: int = 0
    """updates of imitation before the training, of a player who moves at random: they teach the format, not the game"""
    updates: int = 60
    """optimizer steps"""
    episodes: int | None = None
    """episodes per update; when not given, 128 for the tiny model and 256 for others"""
    samples: int = 2
    """episodes per start: TRL's num_generations, 2 at least"""
    learning_rate: float | None = None
    """of AdamW; when not given, 2e-3 for the tiny model and 1e-5 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    rows: int = 64
    """rows of tokens in one forward pass of the loss, at most, on a GPU; fewer need less memory, the gradient is the same"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int = 24
    """tokens a turn may have"""
    max_response: int = 384
    """tokens a row may have behind its first prompt, observations included: TRL's max_completion_length"""
    loss_type: str = "dapo"
    """TRL's loss; dapo weighs every token of an update alike"""
    vllm: bool = False
    """generate with vLLM on the same GPU"""
    vllm_memory: float = 0.3
    """the share of the GPU's memory vLLM takes"""
    seed: int = 0
    """of the order of starts and of sampling"""
    out: str = "runs/trl_guess_the_number"
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
    """Refuses what cannot work before anything heavy is loaded; gem and TRL check their own settings."""
    for name in ("updates", "episodes", "rows", "max_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    if args.lessons < 0:
        raise ConfigError(f"--lessons must be 0 or more; given: {args.lessons}")
    if args.samples < 2:
        raise ConfigError(f"--samples must be 2 or more, since GRPOTrainer insists on groups; given: {args.samples}")
    if args.episodes % args.samples:
        raise ConfigError(f"--episodes must be a multiple of --samples; given: {args.episodes} and {args.samples}")
    estimators.get(args.advantage)
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def load_model(args: Args) -> tuple[Any, Any]:
    """(model, tokenizer), float32; TRL puts them where they are trained."""
    if args.model == "tiny":
        return load_tiny()
    if args.model == "smollm2":
        return load_smollm2()
    if not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {args.model!r}")
    return load_folder(args.model, "--model")


def teach(model: Any, tokenizer: Any, args: Args, rows: int = 32) -> None:
    """Cross-entropy on the tokens of a player who makes legal moves at random, from starts that are not trained on."""
    wrappers = [*parse_wrappers(args.wrappers), *parse_wrappers(args.tools)]
    with Rollout(RandomPlayer()) as engine:
        played = engine.run_batch(tasks_for(args.env, range(2**30, 2**30 + rows * args.lessons), wrappers=wrappers))
    broken = next((e for e in played if e.failed), None)
    if broken is not None:
        raise ConfigError(f"--lessons needs an environment that a random player can play; {broken!r}")
    views = [view for e in played for view in token_sequences(tokenised(e, Renderer(tokenizer)))]
    random.Random(args.seed).shuffle(views)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    for first in range(0, rows * args.lessons, rows):
        part = views[first : first + rows]
        width = max(len(view.ids) for view in part)
        ids_B_T = torch.tensor([[*v.ids, *[0] * (width - len(v.ids))] for v in part], device=model.device)
        said_B_T = torch.tensor([[*v.mask, *[0] * (width - len(v.ids))] for v in part], device=model.device).bool()
        logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1]  # padding stands behind, where nothing sees it
        loss = torch.nn.functional.cross_entropy(logits_B_T_V[said_B_T[:, 1:]].float(), ids_B_T[:, 1:][said_B_T[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
    print(f"{args.lessons} lessons, loss {loss.item():.3f}", flush=True)


def train(args: Args) -> bool:
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "episodes.jsonl", "curve.png"):
        (out / name).unlink(missing_ok=True)

    # the environment, as TRL takes it: a data set of starts, a rollout function, a reward function
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
    )

    # the trainer: TRL's own settings, and nothing of gem in them
    gpu = torch.cuda.is_available()
    rows = math.gcd(args.rows, args.episodes) if gpu else args.episodes  # TRL wants whole micro-batches
    config = GRPOConfig(
        output_dir=str(out / "trainer"),
        max_steps=args.updates,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=args.episodes // rows,
        num_generations=args.samples,
        max_completion_length=args.max_response,
        learning_rate=args.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=args.max_grad_norm,
        temperature=args.temperature,
        loss_type=args.loss_type,
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=args.vllm_memory,
        vllm_max_model_length=1024 if args.vllm else None,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    model, tokenizer = load_model(args)
    began = time.time()
    if args.lessons:
        teach(model, tokenizer, args)
    trainer = GemGRPOTrainer(model=model, args=config, processing_class=tokenizer, **spec.arguments())

    # training
    finished = False
    try:
        trainer.train()
        finished = True
    except KeyboardInterrupt:
        print(f"\ninterrupted after {trainer.state.global_step} updates; writing what was done", file=sys.stderr)

    # what is left of it
    metrics = [
        {
            "step": int(log["step"]) - 1,
            "success": log.get("gem/success", 0.0),
            "return_mean": log["gem/return"],
            "turns_mean": log["gem/turns"],
            "tokens": log["completions/mean_length"] * args.episodes,
            "loss": log["loss"],
            "grad_norm": log["grad_norm"],
            "failed": log["gem/failed"] * args.episodes,
            "seconds": log["step_time"],
        }
        for log in trainer.state.log_history
        if "gem/return" in log
    ]
    if metrics:
        written = MetricsFile(out, overwrite=True)
        for line in metrics:
            written.write(**line)
        try:
            title = f"{args.env}, {args.model}, {args.advantage} in TRL, seed {args.seed}"
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
