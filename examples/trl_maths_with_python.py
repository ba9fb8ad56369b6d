# /// script
# requires-python = ">=3.11"
# dependencies = ["gem[math,plot,transformers,trl]>=0.2"]
# ///
"""Maths with Python in TRL: a model learns to ask a Python sandbox instead of guessing.

    python examples/trl_maths_with_python.py                                 # the tiny model, CPU, minutes
    python examples/trl_maths_with_python.py --advantage grpo --samples 8
    python examples/trl_maths_with_python.py --model smollm2 --vllm          # SmolLM2-135M-Instruct, one GPU
    python examples/trl_maths_with_python.py --model smollm2 --vllm --env math:GSM8K

The problems are sums of two numbers, written to --out; --env names any other maths environment. A call is a turn like every
other: sampled, credited and trained, and its result comes back with the role `tool`. The tiny model has never seen a tool, so
that it first imitates students for --lessons updates: one who always calls, then a weak one who guesses in three of five
problems, and it is the weak one's habit that training has to break.

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes.jsonl, problems.jsonl.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout functions are announced as experimental at every start

import torch
from trl import GRPOConfig

from gem_core import GemError, Generation, Limits, Renderer, Rollout, Sampling, token_sequences
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies import load_smollm2, load_tiny
from gem_core.policies.tiny import load_folder
from gem_core.training.advantage import estimators
from gem_core.training.metrics_file import MetricsFile
from gem_eval.curves import draw_curves
from gem_trl import GemGRPOTrainer, GemConfig


@dataclass
class Args:
    model: str = "tiny"  # `tiny` (ships with gem), `smollm2`, or a model folder
    env: str = ""  # a maths environment; empty: sums of two numbers
    operation: str = "+"  # `+` or `*`
    largest: int = 49  # number in a problem; sums up to 98 are one token for the tiny model
    tools: str = "python(max_uses=2)"  # tools the model may call; empty for none, to see what they bring
    lessons: int = 600  # imitation updates before the tiny model is trained
    advantage: str = "rebn"  # any estimator that needs no critic
    gamma: float = 1.0  # discount per turn
    updates: int = 30  # optimizer steps
    episodes: int = 64  # episodes per update
    samples: int = 2  # episodes per problem: TRL's num_generations, 2 at least
    learning_rate: float = 0.0  # of AdamW; 0: 1e-3 for the tiny model, 1e-5 for others
    max_tokens: int = 32  # tokens a turn may have
    max_response: int = 256  # tokens a row may have behind its first prompt
    vllm: bool = False  # generate with vLLM on the same GPU
    seed: int = 0  # of the problems and of sampling
    out: str = "runs/trl_maths_with_python"  # folder for what is written
    overwrite: bool = False  # replace the files of an earlier run


class Student:
    """Writes a call as often as it is told to, and copies its result; guesses otherwise."""

    def __init__(self, tokenizer: Any, calls: float, seed: int) -> None:
        self.tokenizer, self.calls, self.rng = tokenizer, calls, random.Random(seed)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        text = self.tokenizer.decode(list(prompt_ids))
        (asked,) = re.findall(r"What is (\d+ . \d+)\?", text)
        results = re.findall(r"tool\n(\d+)", text)
        if results:
            said = f"\\boxed{{{results[-1]}}}"
        elif self.rng.random() < self.calls:
            said = f"<python>print({asked})</python>"
        else:
            said = f"\\boxed{{{self.rng.randrange(1, 100)}}}"
        ids = [*self.tokenizer.encode(said), self.tokenizer.eos_token_id]
        return Generation(tuple(ids), (0.0,) * len(ids))


def write_problems(path: Path, operation: str, largest: int, seed: int, count: int = 4096) -> None:
    rng, work = random.Random(seed), {"+": operator.add, "*": operator.mul}[operation]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            a, b = rng.randint(1, largest), rng.randint(1, largest)
            file.write(json.dumps({"problem": f"What is {a} {operation} {b}?", "answer": str(work(a, b))}) + "\n")


def teach(model: Any, tokenizer: Any, spec: GemConfig, args: Args) -> None:
    """Imitation of the student's tokens, played by the real engine in the real environment."""
    began = time.time()
    rows = {}
    for calls in (1.0, 0.4):
        student = Student(tokenizer, calls, args.seed)
        with Rollout(student, Renderer(tokenizer), limits=Limits(max_turns=4), concurrency=1) as engine:
            episodes = engine.run_batch([spec.task(seed, seed) for seed in range(800)])
        rows[calls] = [(view.ids, view.mask) for e in episodes for view in token_sequences(e)]
    rng = random.Random(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for update in range(args.lessons):
        chosen = rng.sample(rows[1.0 if update < args.lessons * 3 // 4 else 0.4], 16)
        width = max(len(ids) for ids, _ in chosen)
        ids_B_T = torch.tensor([[*ids, *[tokenizer.pad_token_id] * (width - len(ids))] for ids, _ in chosen])
        said_B_T = torch.tensor([[*mask, *[0] * (width - len(mask))] for _, mask in chosen]).bool()
        hidden_B_T_D = model.model(input_ids=ids_B_T).last_hidden_state[:, :-1]
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden_B_T_D[said_B_T[:, 1:]]), ids_B_T[:, 1:][said_B_T[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (update + 1) % 100 == 0:
            print(f"lesson {update + 1}: loss {loss.item():.3f}, {time.time() - began:.0f} s", flush=True)


def load_model(args: Args) -> tuple[Any, Any]:
    """(model, tokenizer), float32; TRL puts them where they are trained."""
    if args.model == "tiny":
        return load_tiny()
    if args.model == "smollm2":
        return load_smollm2()
    if not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {args.model!r}")
    return load_folder(args.model, "--model")


def check(args: Args) -> None:
    """Refuses what cannot work before anything heavy is loaded; gem and TRL check their own settings."""
    for name in ("updates", "episodes", "max_tokens", "largest"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    if args.samples < 2 or args.episodes % args.samples:
        raise ConfigError(
            "--samples must be 2 or more, since GRPOTrainer insists on groups, and --episodes a multiple of it; given: "
            f"{args.samples} and {args.episodes}"
        )
    if args.operation not in "+*":
        raise ConfigError(f"--operation must be + or *; given: {args.operation!r}")
    estimators.get(args.advantage)
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def train(args: Args) -> bool:
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "episodes.jsonl", "curve.png"):
        (out / name).unlink(missing_ok=True)
    write_problems(out / "problems.jsonl", args.operation, args.largest, args.seed)

    # the environment, as TRL takes it: a data set of starts, a rollout function, a reward function
    tiny = args.model == "tiny"
    spec = GemConfig(
        args.env or "math:Sample-v0",
        env_kwargs={} if args.env else {"dataset": str(out / "problems.jsonl")},
        seeds=args.episodes // args.samples * args.updates,
        tools=args.tools,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_tokens,
        record=str(out / "episodes.jsonl"),
    )
    model, tokenizer = load_model(args)
    if tiny and args.tools and not args.env:
        teach(model, tokenizer, spec, args)

    # the trainer: TRL's own settings, and nothing of gem in them
    gpu = torch.cuda.is_available()
    config = GRPOConfig(
        output_dir=str(out / "trainer"),
        max_steps=args.updates,
        per_device_train_batch_size=args.episodes,
        num_generations=args.samples,
        max_completion_length=args.max_response,
        learning_rate=args.learning_rate or (1e-3 if tiny else 1e-5),
        lr_scheduler_type="constant",
        loss_type="dapo",  # weighs every token of an update alike
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_max_model_length=1024 if args.vllm else None,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    trainer = GemGRPOTrainer(model=model, args=config, processing_class=tokenizer, **spec.arguments())

    # training
    began = time.time()
    finished = False
    try:
        trainer.train()
        finished = True
    except KeyboardInterrupt:
        print(f"\ninterrupted after {trainer.state.global_step} updates; writing what was done", file=sys.stderr)

    # what is left of it
    logs = [log for log in trainer.state.log_history if "gem/return" in log]
    metrics = MetricsFile(out)
    for log in logs:
        metrics.write(
            int(log["step"]) - 1,
            success=log.get("gem/success"),
            turns_mean=log["gem/turns"],
            tool_uses=log.get("gem/tool_uses"),
            loss=log["loss"],
            seconds=log["step_time"],
        )
    for what, part in (("first 3", logs[:3]), ("last 10", logs[-10:])):
        for name in ("success", "tool_uses"):
            seen = [log[f"gem/{name}"] for log in part if f"gem/{name}" in log]
            if seen:
                print(f"{name}, mean of the {what} updates: {sum(seen) / len(seen):.3f}")
    if logs:
        try:
            draw_curves({args.advantage: [out]}, out / "curve.png", title=f"{args.model}, {args.tools or 'no tools'}", smooth=5)
        except MissingDependencyError as missing:
            print(f"no curve.png: {missing}")
    print(f"{time.time() - began:.0f} s; written to {out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    return finished


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = Path(__file__).read_text(encoding="utf-8")
    for field in fields(Args):
        text = re.search(rf"^    {field.name}: .*?  # (.*)$", source, re.MULTILINE)[1]  # the comment beside it
        kind = {"action": argparse.BooleanOptionalAction} if field.type == "bool" else {"type": type(field.default)}
        shown = "" if field.default in ("", False) else f" (default: {field.default})"
        parser.add_argument(f"--{field.name.replace('_', '-')}", default=field.default, help=text + shown, **kind)
    try:
        done = train(Args(**vars(parser.parse_args())))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if done else 130)
