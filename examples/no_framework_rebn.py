# /// script
# requires-python = ">=3.10"
# dependencies = ["gem[plot,transformers]>=0.2", "tqdm"]
# ///
"""REINFORCE with Return Batch Normalization (ReBN) in plain torch: episodes in, per-turn credit, one optimizer step.

    python examples/no_framework_rebn.py                                    # the tiny model, CPU, about two minutes
    python examples/no_framework_rebn.py --seed 1 --overwrite
    python examples/no_framework_rebn.py --advantage grpo --samples 8
    python examples/no_framework_rebn.py --model smollm2                    # SmolLM2-135M-Instruct, wants a GPU

Writes to --out: metrics.jsonl (a line per update), curve.png, episodes.jsonl (the last batch; `gem_core.records.file` reads it).
A folder that holds metrics already is refused, unless --overwrite is given: then those three files are replaced.
Ctrl-C ends the training, not the work: curve, metrics and episodes of what was done are written.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from gem_core import (
    Episode,
    GemError,
    HorizonSchedule,
    Limits,
    Renderer,
    Rollout,
    Sampling,
    advantages,
    make,
    tasks_for,
    token_sequences,
)
from gem_core.env.wrapper_stack import parse_wrappers
from gem_core.errors import ConfigError, MissingDependencyError
from gem_core.policies import TransformersPolicy, load_smollm2, load_tiny
from gem_core.policies.tiny import load_folder
from gem_core.records.file import RecordWriter
from gem_core.training.advantage import estimators
from gem_core.training.metrics_file import MetricsFile
from gem_eval.tracker import Tracker
from gem_eval.curves import draw_curves


@dataclass
class Args:
    model: str = "tiny"
    """`tiny` (ships with gem), `smollm2` (SmolLM2-135M-Instruct), or a model folder"""
    env: str = "game:GuessTheNumber-v0-easy"
    """the environment, or a mixture of several"""
    wrappers: str = ""
    """wrappers around it, innermost first, as in `react,concat_chat`"""
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
    samples: int = 1
    """episodes per start; estimators with a group baseline (grpo, rloo) need 2 or more"""
    learning_rate: float | None = None
    """of Adam; when not given, 2e-3 for the tiny model and 2e-5 for others"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    rows: int = 32
    """rows of tokens in one forward pass of the loss; fewer need less memory, the gradient is the same"""
    temperature: float = 1.0
    """of sampling, and of the logprobs that are trained"""
    max_tokens: int = 24
    """tokens a turn may have"""
    eval_episodes: int = 256
    """episodes, on seeds not trained on, before and after the training; 0: none"""
    seed: int = 0
    """of the environments' starts and of sampling"""
    device: str = "auto"
    """`auto`: the CPU for the tiny model, for others a GPU when there is one"""
    threads: int | None = None
    """CPU threads; when not given, 1 for the tiny model, whom a second one only slows down, and torch's own choice for others"""
    out: str = "runs/no_framework_rebn"
    """folder for what is written"""
    overwrite: bool = False
    """replace the files of an earlier run"""
    track: str = ""
    """also log to `wandb` or `trackio`, where it is installed"""
    save_model: bool = False
    """also write the trained model, to `model` under --out"""


def parse_args(argv: Sequence[str] | None = None) -> Args:
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
    return Args(**vars(parser.parse_args(argv)))


def check(args: Args) -> None:
    """Refuses what cannot work before anything heavy is loaded."""
    for name in ("updates", "episodes", "samples", "rows", "max_tokens", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more; given: {getattr(args, name)}")
    if args.eval_episodes < 0:
        raise ConfigError(f"--eval-episodes must be 0 or more; given: {args.eval_episodes}")
    if args.learning_rate is not None and not args.learning_rate > 0:
        raise ConfigError(f"--learning-rate must be above 0; given: {args.learning_rate}")
    if not args.temperature > 0:
        raise ConfigError(
            f"--temperature must be above 0, since a greedy player has nothing to learn from; given: {args.temperature}"
        )
    if not 0 <= args.gamma <= 1:
        raise ConfigError(f"--gamma must be between 0 and 1; given: {args.gamma}")
    needs = estimators.get(args.advantage).needs
    if "values" in needs:
        raise ConfigError(f"--advantage {args.advantage} needs a critic's values, and this recipe has no critic; rebn needs none")
    if "groups" in needs and args.samples < 2:
        raise ConfigError(
            f"--advantage {args.advantage} compares episodes from one start: give --samples 2 or more; given: {args.samples}"
        )
    if args.episodes % args.samples:
        raise ConfigError(f"--episodes must be a multiple of --samples; given: {args.episodes} and {args.samples}")
    HorizonSchedule.parse(args.horizon or None)
    make(args.env, wrappers=wrappers_and_tools(args)).close()
    earlier = Path(args.out) / "metrics.jsonl"
    if not args.overwrite and earlier.exists() and earlier.stat().st_size:
        raise ConfigError(f"{args.out} holds the metrics of an earlier run; give another --out, or --overwrite to replace them")


def wrappers_and_tools(args: Args) -> list[Any]:
    """Tools stand outside: what is no call of a tool goes on to the action format."""
    return [*parse_wrappers(args.wrappers), *parse_wrappers(args.tools)]


def load_model(args: Args) -> tuple[Any, Any]:
    """(model, tokenizer), float32."""
    gpu = args.model != "tiny" and torch.cuda.is_available()
    device = ("cuda" if gpu else "cpu") if args.device == "auto" else args.device
    if args.model == "tiny":
        return load_tiny(device)
    if args.model == "smollm2":
        return load_smollm2(device=device)
    if not (Path(args.model) / "config.json").is_file():
        raise ConfigError(f"--model must be 'tiny', 'smollm2' or a model folder with a config.json; given: {args.model!r}")
    return load_folder(args.model, "--model", device)


def success_rate(episodes: Sequence[Episode]) -> float:
    """The share of episodes the environment calls a success, of those whose outcome is known."""
    known = [e.success for e in episodes if not e.failed]
    return sum(map(bool, known)) / max(len(known), 1)


def progress(total: int) -> tuple[Callable[[str], None], Callable[[], None]]:
    """(advance by one update and show a text, close): tqdm's bar where it is installed, else lines."""
    try:
        from tqdm import tqdm
    except ImportError:
        began, done = time.time(), 0

        def advance(text: str) -> None:
            nonlocal done
            done += 1
            print(f"\r{done}/{total} updates, {time.time() - began:.0f} s, {text}   ", end="", file=sys.stderr, flush=True)

        return advance, lambda: print(file=sys.stderr)
    bar = tqdm(total=total, unit="update", mininterval=1.0)

    def move(text: str) -> None:
        bar.set_postfix_str(text, refresh=False)
        bar.update()

    return move, bar.close


def train(args: Args) -> bool:
    """Everything, in order. False where Ctrl-C cut it short."""
    check(args)
    if args.threads is not None or args.model == "tiny":
        torch.set_num_threads(args.threads or 1)

    # the model, as a policy that samples token ids
    model, tokenizer = load_model(args)
    policy = TransformersPolicy(model, tokenizer, seed=args.seed, max_batch=None)
    renderer = Renderer(tokenizer)
    sampling = Sampling(temperature=args.temperature, max_tokens=args.max_tokens)
    learning_rate = args.learning_rate if args.learning_rate is not None else 2e-3 if args.model == "tiny" else 2e-5
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    horizon = HorizonSchedule.parse(args.horizon or None)
    wrappers = wrappers_and_tools(args)
    max_context = getattr(model.config, "max_position_embeddings", None)

    def play(seeds: Sequence[int], samples: int, step: int) -> list[Episode]:
        limits = Limits(max_turns=horizon(step) if horizon else None, max_context=max_context)
        with Rollout(policy, renderer, sampling=sampling, limits=limits, concurrency=256) as engine:
            return engine.run_batch(tasks_for(args.env, seeds, samples=samples, wrappers=wrappers))

    # where it is written; only now, so that a mistake above leaves an earlier run as it was
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("episodes.jsonl", "curve.png"):
        (out / name).unlink(missing_ok=True)
    written = MetricsFile(out, overwrite=True)

    # seeds below 2**30 are trained on, those from there up are held out
    starts = random.Random(args.seed)
    held_out = range(2**30, 2**30 + args.eval_episodes)
    base: float | None = None
    final: float | None = None
    metrics: list[dict[str, Any]] = []
    episodes: list[Episode] = []
    before_training = ""
    began = time.time()
    finished = False
    close_bar: Callable[[], None] | None = None
    try:
        if held_out:
            base = success_rate(play(held_out, 1, args.updates))
            before_training = f"before training: success {base:.1%} on {len(held_out)} held-out seeds"
            print(before_training, flush=True)
        training_began = time.time()
        advance, close_bar = progress(args.updates)
        for step in range(args.updates):
            # 1. play: token-exact episodes, a reward for each turn
            seeds = [starts.randrange(2**30) for _ in range(args.episodes // args.samples)]
            batch = play(seeds, args.samples, step)
            known = [e for e in batch if not e.failed]
            if not known:
                raise ConfigError(f"every episode of update {step} failed, the first with: {batch[0].failure}")

            # 2. credit: one number per turn, spread over the tokens that turn sampled
            credit = advantages(batch, args.advantage, gamma=args.gamma)
            rows = [(view, view.broadcast(turns)) for e, turns in zip(batch, credit) for view in token_sequences(e)]
            rows.sort(key=lambda row: len(row[0].ids))  # rows of like length share a forward pass
            tokens = sum(sum(view.mask) for view, _ in rows)  # Z, the valid action tokens of the update

            # 3. loss = -1/Z * sum over trained tokens of A * log pi, gradients summed up over parts of the batch
            model.train()
            optimizer.zero_grad()
            loss = 0.0
            for first in range(0, len(rows), args.rows):
                part = rows[first : first + args.rows]
                width = max(len(view.ids) for view, _ in part)

                def padded(numbers: Sequence[Sequence[float]], width: int = width) -> torch.Tensor:
                    return torch.tensor([[*row, *[0] * (width - len(row))] for row in numbers], device=model.device)

                ids_B_T = padded([view.ids for view, _ in part])
                seen_B_T = padded([[1] * len(view.ids) for view, _ in part])
                mask_B_T = padded([view.mask for view, _ in part])
                advantage_B_T = padded([spread for _, spread in part])
                logits_B_T_V = model(input_ids=ids_B_T, attention_mask=seen_B_T).logits[:, :-1].float() / args.temperature
                logp_B_T = logits_B_T_V.log_softmax(-1).gather(-1, ids_B_T[:, 1:, None])[..., 0]
                part_loss = -(logp_B_T * advantage_B_T[:, 1:] * mask_B_T[:, 1:]).sum() / max(tokens, 1)
                part_loss.backward()
                loss += part_loss.item()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm).item()
            optimizer.step()
            policy.weight_version += 1
            model.eval()

            # 4. report
            episodes = batch
            line = {
                "step": step,
                "success": success_rate(batch),
                "return_mean": sum(sum(e.rewards) for e in known) / len(known),
                "turns_mean": sum(len(e.turns) for e in known) / len(known),
                "tokens": tokens,
                "loss": loss,
                "grad_norm": grad_norm,
                "failed": len(batch) - len(known),
                "seconds": round(time.time() - training_began, 3),
            }
            metrics.append(line)
            written.write(**line)
            advance(f"success {line['success']:.0%}, return {line['return_mean']:.2f}, {line['turns_mean']:.1f} turns")
        if held_out:
            final = success_rate(play(held_out, 1, args.updates))
        finished = True
    except KeyboardInterrupt:
        print(f"\ninterrupted after {len(metrics)} updates; writing what was done", file=sys.stderr)
    finally:
        if close_bar is not None:
            close_bar()
        policy.close()

    # what is left of it
    if metrics:
        try:
            levels = {} if base is None else {"before training, held-out seeds": base}
            title = f"{args.env}, {args.model}, {args.advantage}, seed {args.seed}"
            draw_curves({"mean of 10 updates": [out]}, out / "curve.png", smooth=10, title=title, levels=levels)
        except MissingDependencyError as error:
            print(f"no curve.png: {error}")
        with RecordWriter(out / "episodes.jsonl") as record:
            for episode in episodes:
                record.write(episode)
        last = [m["success"] for m in metrics[-10:]]
        print(f"success, mean of the last {len(last)} updates: {sum(last) / len(last):.1%}")
    if args.save_model and metrics:
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
    if final is not None:
        print(f"success on {len(held_out)} held-out seeds: {base:.1%} before, {final:.1%} after")
    elif before_training:
        print(before_training)
    print(f"{time.time() - began:.0f} s; written to {out}: {', '.join(sorted(p.name for p in out.iterdir())) or 'nothing'}")
    return finished


if __name__ == "__main__":
    given = parse_args()
    try:
        with Tracker(given.track, name=f"seed {given.seed}", config=asdict(given)) if given.track else nullcontext():
            done = train(given)
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # before there was anything to keep
        sys.exit(130)
    sys.exit(0 if done else 130)
