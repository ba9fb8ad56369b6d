# /// script
# requires-python = ">=3.10,<3.13"
# dependencies = ["gem[plot,transformers,verl]>=0.2"]
# ///
"""GuessTheNumber in verl: its default PPO trainer, with per-turn advantages by any of gem's estimators.

    python examples/verl_guess_the_number.py                                  # the tiny model, CPU, minutes
    python examples/verl_guess_the_number.py --seed 1 --overwrite
    python examples/verl_guess_the_number.py --advantage grpo --samples 8
    python examples/verl_guess_the_number.py --model smollm2 --updates 20     # SmolLM2-135M-Instruct and vLLM, one GPU

Writes to --out: metrics.jsonl (a line per update), curve.png, verl.jsonl (all that verl logs), episodes-*.jsonl (every episode;
`gem_core.records.file` reads it). A folder that holds metrics already is refused, unless --overwrite is given: then these files are
replaced. Ctrl-C ends the training, not the work: curve and metrics of what was done are written.

verl needs a GPU. Without one, the tiny model is trained by verl's own trainer with the stand-ins of tests/adapters/verl in
place of platform and inference server; that needs a checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from gem_core import GemError
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies import load_smollm2, tiny_model_path
from gem_core.training.advantage import estimators
from gem_core.training.metrics_file import MetricsFile
from gem_eval.curves import draw_curves
from gem_verl import GemConfig

STAND_INS = Path(__file__).resolve().parents[1] / "tests" / "adapters" / "verl"


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
    """episodes per start: verl's rollout.n"""
    learning_rate: float | None = None
    """of AdamW; when not given, 2e-3 for the tiny model and 1e-5 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    rows: int = 64
    """rows of tokens in one forward pass of the loss, at most; fewer need less memory, the gradient is the same"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int = 24
    """tokens a turn may have"""
    max_prompt: int = 256
    """tokens of the first prompt: verl's data.max_prompt_length"""
    max_response: int = 384
    """tokens a row may have behind its first prompt, observations included: verl's data.max_response_length"""
    validate: int = 0
    """held-out starts to play every 10 updates, greedily"""
    vllm_memory: float = 0.4
    """the share of the GPU's memory vLLM takes"""
    seed: int = 0
    """of the order of starts and of sampling"""
    out: str = "runs/verl_guess_the_number"
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
    """Refuses what cannot work before anything heavy is loaded; gem and verl check their own settings."""
    for name in ("updates", "episodes", "samples", "rows", "max_tokens"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    if args.episodes % args.samples:
        raise ConfigError(f"--episodes must be a multiple of --samples; given: {args.episodes} and {args.samples}")
    estimators.get(args.advantage)
    if not torch.cuda.is_available():
        if args.model != "tiny":
            raise ConfigError(f"verl trains {args.model!r} on a GPU, and torch finds none here; --model tiny runs on a CPU")
        if not (STAND_INS / "verl_on_cpu").is_dir():
            raise ConfigError(
                f"without a GPU, this recipe needs the stand-ins of a checkout; {STAND_INS}/verl_on_cpu is not there"
            )
    if not args.overwrite and (Path(args.out) / "metrics.jsonl").exists():
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def model_folder(args: Args, out: Path) -> Path:
    """The model as a folder, which is how verl's workers take it."""
    if args.model == "tiny":
        return tiny_model_path()
    if args.model == "smollm2":
        for part in load_smollm2():
            part.save_pretrained(out / "model")
        return out / "model"
    if not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {args.model!r}")
    return Path(args.model)


def read_log(path: Path, episodes: int) -> list[dict[str, Any]]:
    """What verl logged of each update, in the words of gem's recipes."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        {
            "step": line["step"] - 1,
            "success": line["data"].get("gem/success", 0.0),
            "return_mean": line["data"]["gem/return"],
            "turns_mean": line["data"]["gem/turns"],
            "tokens": line["data"]["response_length/mean"] * episodes,
            "loss": line["data"]["actor/pg_loss"],
            "grad_norm": line["data"]["actor/grad_norm"],
            "failed": line["data"]["gem/failed"] * episodes,
            "seconds": line["data"]["timing_s/step"],
        }
        for line in lines
        if "actor/grad_norm" in line["data"]
    ]


def train(args: Args) -> bool:
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("metrics.jsonl"), *out.glob("verl.jsonl"), *out.glob("episodes-*.jsonl"), *out.glob("curve.png")):
        old.unlink()

    # the environment, as verl takes it: a data set of starts, an agent loop, an estimator
    spec = GemConfig(
        args.env,
        seeds=args.episodes // args.samples * args.updates,
        eval_seeds=args.validate,
        wrappers=args.wrappers,
        tools=args.tools,
        advantage=args.advantage,
        gamma=args.gamma,
        horizon=args.horizon or None,
        max_turn_tokens=args.max_tokens,
        record=str(out / "episodes-{rank}.jsonl"),
    )

    # the trainer: verl's own settings, and nothing of gem in them
    rows = math.gcd(args.rows, args.episodes)  # verl wants whole micro-batches
    settings = [
        f"actor_rollout_ref.model.path={model_folder(args, out)}",
        f"data.train_batch_size={args.episodes // args.samples}",
        f"data.max_prompt_length={args.max_prompt}",
        f"data.max_response_length={args.max_response}",
        f"data.seed={args.seed}",
        "data.dataloader_num_workers=0",
        f"actor_rollout_ref.rollout.n={args.samples}",
        f"actor_rollout_ref.rollout.temperature={args.temperature}",
        f"actor_rollout_ref.rollout.seed={args.seed}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={rows}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={args.episodes // args.samples}",  # one update over the whole batch
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows}",
        f"actor_rollout_ref.actor.optim.lr={args.learning_rate}",
        f"actor_rollout_ref.actor.grad_clip={args.max_grad_norm}",
        f"trainer.total_training_steps={args.updates}",
        "trainer.total_epochs=1",
        "trainer.logger=[console,file]",
        "trainer.project_name=gem",
        "trainer.experiment_name=verl_guess_the_number",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"hydra.run.dir={out}",
        "hydra.output_subdir=null",
    ]
    if args.validate:
        settings += ["trainer.test_freq=10", "trainer.val_before_train=False"]
    os.environ["VERL_FILE_LOGGER_PATH"] = str(out / "verl.jsonl")
    if torch.cuda.is_available():
        settings += [
            "trainer.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            f"actor_rollout_ref.rollout.gpu_memory_utilization={args.vllm_memory}",
        ]
        if find_spec("flash_attn") is None:  # verl's default, which has to be compiled
            settings += [
                "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
                "actor_rollout_ref.model.use_remove_padding=False",
            ]
    else:
        sys.path.insert(0, str(STAND_INS))
        import verl_on_cpu

        settings += verl_on_cpu.SETTINGS
        os.environ.update(verl_on_cpu.environment())

    # training: what `python -m verl.trainer.main_ppo` does with these settings
    from verl.trainer import main_ppo

    from gem_verl.config import check_registered

    check_registered()
    sys.argv = [main_ppo.__file__, *spec.overrides(), *settings]
    began = time.time()
    finished = False
    try:
        main_ppo.main()
        finished = True
    except KeyboardInterrupt:
        print("\ninterrupted; writing what was done", file=sys.stderr)

    # what is left of it
    metrics = read_log(out / "verl.jsonl", args.episodes)
    if metrics:
        written = MetricsFile(out, overwrite=True)
        for line in metrics:
            written.write(**line)
        try:
            title = f"{args.env}, {args.model}, {args.advantage} in verl, seed {args.seed}"
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
