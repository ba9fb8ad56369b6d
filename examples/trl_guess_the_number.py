# /// script
# requires-python = ">=3.11"
# dependencies = ["gem[trl,transformers,plot]"]
# ///
"""GuessTheNumber in TRL: GRPOTrainer with per-turn advantages by any of gem's estimators.

    python examples/trl_guess_the_number.py                                   # a tiny model, CPU, minutes
    python examples/trl_guess_the_number.py --advantage grpo --generations 4  # a group baseline instead
    python examples/trl_guess_the_number.py --model smollm2 --vllm            # SmolLM2-135M-Instruct, one GPU

Writes metrics.jsonl, episodes.jsonl and curve.png into --out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is announced as experimental at every start


@dataclass
class Args:
    env: str = "game:GuessTheNumber-v0-easy"
    """the environment id, or a mixture such as '2*game:A + game:B'"""
    model: str = "tiny"
    """tiny (ships with gem), smollm2 (SmolLM2-135M-Instruct), or a model folder or name"""
    advantage: str = "rebn"
    """any estimator without a critic: reinforce, rebn, grpo, rloo, reinforce++"""
    gamma: float = 0.9
    """discount per turn"""
    steps: int = 0
    """updates; 0 chooses: 60 for tiny, 25 otherwise"""
    batch: int = 0
    """episodes per update; 0 chooses: 128 for tiny, 256 otherwise"""
    generations: int = 2
    """episodes per start: the size of a group"""
    lr: float = 0.0
    """learning rate; 0 chooses: 2e-3 for tiny, 2e-5 otherwise"""
    turn_tokens: int = 16
    """cap on the tokens of one turn"""
    loss: str = "dapo"
    """TRL's loss_type; dapo weighs every token of the batch alike"""
    vllm: bool = False
    """generate with vLLM, colocated on the same GPU"""
    horizon: str = ""
    """turns per episode, as '4' or '2,3,4@20' (ScalingInter-RL); empty: as the environment says"""
    wrappers: str = ""
    """wrappers by name, innermost first, separated by commas"""
    seed: int = 0
    """of the model's sampling and the order of the starts"""
    out: str = "runs/trl_guess_the_number"
    """where the results go"""


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    source = Path(__file__).read_text(encoding="utf-8")
    for field in fields(Args):
        told = source.split(f"    {field.name}: ")[1].split('"""')[1]
        if field.type == "bool":
            parser.add_argument(f"--{field.name}", action="store_true", help=told)
        else:
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default, help=told)
    args = Args(**vars(parser.parse_args()))
    tiny = args.model == "tiny"
    args.steps = args.steps or (60 if tiny else 25)
    args.batch = args.batch or (128 if tiny else 256)
    args.lr = args.lr or (2e-3 if tiny else 2e-5)
    if args.batch % args.generations:
        parser.error(f"--batch {args.batch} must be a multiple of --generations {args.generations}")
    return args


def draw(rows: list[dict], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4))
    for key in ("success", "return_mean"):
        axis.plot([r["step"] for r in rows], [r[key] for r in rows], label=key.replace("_mean", ""))
    axis.set(xlabel="update", ylim=(-0.2, 1.05), title=title)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    args = parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    import torch
    from trl import GRPOConfig

    from gem_core.errors import GemError
    from gem_trl import GemGRPOTrainer, GemSpec

    # the model
    if args.model == "tiny":
        from gem_core.policies.tiny import load_tiny

        model, tokenizer = load_tiny()
    elif args.model == "smollm2":
        from gem_core.policies.smollm2 import load_smollm2

        model, tokenizer = load_smollm2()
    else:
        model, tokenizer = args.model, None
    gpu = torch.cuda.is_available()

    # the environment, for TRL
    try:
        spec = GemSpec(
            args.env,
            seeds=args.batch // args.generations * args.steps,
            wrappers=[w for w in args.wrappers.split(",") if w],
            advantage=args.advantage,
            gamma=args.gamma,
            max_turn_tokens=args.turn_tokens,
            horizon=args.horizon or None,
            record=str(out / "episodes.jsonl"),
        )
    except GemError as error:
        sys.exit(f"error: {error}")

    # the trainer: TRL's own settings, and nothing of gem in them
    micro = min(args.batch, 64) if gpu else args.batch
    config = GRPOConfig(
        output_dir=str(out / "trainer"),
        max_steps=args.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=args.batch // micro,
        num_generations=args.generations,
        max_completion_length=384,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        loss_type=args.loss,
        max_grad_norm=1.0,
        temperature=1.0,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=1024 if args.vllm else None,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    trainer = GemGRPOTrainer(model=model, args=config, processing_class=tokenizer, **spec.arguments())

    # training
    began = time.time()
    try:
        trainer.train()
    except KeyboardInterrupt:
        print(f"\nstopped after {trainer.state.global_step} updates; what was done is in {out}", file=sys.stderr)

    # what came of it
    rows = [
        {
            "step": log["step"],
            "success": log.get("gem/success", 0.0),
            "return_mean": log["gem/return"],
            "turns_mean": log["gem/turns"],
            "void": log["gem/void"],
            "loss": log.get("loss"),
            "grad_norm": log.get("grad_norm"),
            "seconds": log.get("step_time"),
        }
        for log in trainer.state.log_history
        if "gem/return" in log
    ]
    (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if rows:
        draw(rows, out / "curve.png", f"{args.env}, {args.advantage}, TRL")
        first, last = rows[:3], rows[-10:]
        mean = lambda part: sum(r["success"] for r in part) / len(part)  # noqa: E731
        print(
            f"success: {mean(first):.2f} (first {len(first)} updates) -> {mean(last):.2f} (last {len(last)}), "
            f"{time.time() - began:.0f} s"
        )
