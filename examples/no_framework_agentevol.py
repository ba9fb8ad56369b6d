"""Self-improvement by imitation, after AgentEvol: play, keep the good episodes, imitate, repeat.

    python examples/no_framework_agentevol.py  # the tiny model, on a CPU in a few minutes
    python examples/no_framework_agentevol.py --env maze:DoubleT-v0 --expert-episodes 64
    python examples/no_framework_agentevol.py --model smollm2 --learning-rate 2e-5  # needs a GPU

AgentEvol trains the base model anew in every round; this recipe trains on. Writes metrics.jsonl,
episodes.jsonl and curve.png to --out; a second run appends to the first two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import tyro

import gem_core as gem
from gem_core.adapter_kit.settings import model_context, reject, too_small
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.policies.models import load_model
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.training.metrics import BatchMetrics
from gem_core.training.warm_up import warm_up
from gem_eval.curves import draw_curves


@dataclass
class Args:
    model: str = "tiny"
    """a model folder, a hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture such as `2*game:A + 1*game:B`"""
    expert_episodes: int = 0
    """episodes of the environment's expert to imitate before the first round"""
    rounds: int = 10
    """how often to play and imitate"""
    episodes: int = 256
    """episodes per round"""
    keep: float = 1.0
    """the smallest return of an episode to imitate"""
    epochs: int = 2
    """passes over the kept episodes of all rounds, per round"""
    max_turn_tokens: int = 24
    """the maximum number of tokens per turn"""
    learning_rate: float = 1e-3
    """the learning rate of Adam"""
    seed: int = 0
    """the seed of sampling and of the order of the environment's seeds"""
    out: str = "runs/no_framework_agentevol"
    """the output folder"""
    batch: int = 32
    """sequences per update"""
    eval_episodes: int = 256
    """episodes on held-out seeds, before and after training"""


def main(args: Args) -> None:
    reject([too_small(f"--{name}", getattr(args, name), 1) for name in ("rounds", "episodes")])
    gem.make(args.env).close()  # an unknown environment raises before the model is loaded

    # The model, as a policy that samples token ids
    device = "cuda" if torch.cuda.is_available() and args.model != "tiny" else "cpu"
    if args.model == "tiny":
        torch.set_num_threads(1)  # faster for such small matrices
    model, tokenizer = load_model(args.model, device)
    if args.expert_episodes:
        updates = -(-args.expert_episodes // args.batch)
        warm_up(model, tokenizer, args.env, player="expert", updates=updates, seed=args.seed)
    policy = TransformersPolicy(model, tokenizer, seed=args.seed, max_batch=None)
    sampling = gem.Sampling(max_tokens=args.max_turn_tokens)
    limits = gem.Limits(max_context=model_context(model.config))
    rollout = gem.Rollout(
        policy, gem.Renderer(tokenizer), sampling=sampling, limits=limits, concurrency=256
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    held_out = gem.tasks_for(args.env, range(10**6, 10**6 + args.eval_episodes))
    before = success(rollout.run_batch(held_out, evaluation=True))
    print(f"before training: success {before:.1%} on {len(held_out)} held-out seeds", flush=True)
    rng, log = random.Random(args.seed), UpdateLog(args.out, max_failed_updates=1)
    kept: list = []
    with rollout, gem.RecordWriter(f"{args.out}/episodes.jsonl") as record:
        for step in range(args.rounds):
            # Play
            seeds = rng.sample(range(100_000), args.episodes)
            tasks = gem.tasks_for(args.env, seeds)
            episodes = rollout.run_batch(tasks, on_episode=record.write)
            # Keep the episodes with a high return; a failed episode has none
            good = [e for e in episodes if not e.failed and e.total_reward >= args.keep]
            kept += [sequence for e in good for sequence in gem.token_sequences(e)]
            # Imitate: cross-entropy of the sampled tokens of the kept episodes of all rounds
            loss, grad_norm = 0.0, 0.0
            for _ in range(args.epochs):
                rng.shuffle(kept)
                for first in range(0, len(kept), args.batch):
                    part = kept[first : first + args.batch]
                    ids_B_T = padded([sequence.ids for sequence in part], device)
                    mask_B_T = padded([sequence.mask for sequence in part], device)[:, 1:]
                    logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1].float()
                    logp_B_T = logits_B_T_V.log_softmax(-1).gather(-1, ids_B_T[:, 1:, None])[..., 0]
                    part_loss = -(logp_B_T * mask_B_T).sum() / mask_B_T.sum().clamp(min=1)
                    optimizer.zero_grad()
                    part_loss.backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    loss, grad_norm = part_loss.item(), norm.item()
            policy.weight_version += 1
            log.write(step, BatchMetrics.of(episodes), loss=loss, grad_norm=grad_norm)
            print(f"round {step}: success {success(episodes):.1%}, kept {len(good)}", flush=True)
        after = success(rollout.run_batch(held_out, evaluation=True))

    levels = {"before, held-out": before}
    draw_curves({"agentevol": [args.out]}, f"{args.out}/curve.png", smooth=3, levels=levels)
    print(f"held-out success: {before:.1%} before, {after:.1%} after; see {args.out}")


def success(episodes: list[gem.Episode]) -> float:
    return BatchMetrics.of(episodes).means().get("success", 0.0)


def padded(numbers: list, device: str) -> torch.Tensor:
    width = max(map(len, numbers))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in numbers], device=device)


if __name__ == "__main__":
    main(tyro.cli(Args))
