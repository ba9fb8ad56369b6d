"""REINFORCE with Return Batch Normalization (ReBN) in plain torch.

    python examples/no_framework_rebn.py  # the tiny model, on a CPU in about two minutes
    python examples/no_framework_rebn.py --advantage grpo --samples 8
    python examples/no_framework_rebn.py --model smollm2 --learning-rate 2e-5  # needs a GPU

Writes metrics.jsonl, episodes.jsonl and curve.png to --out; a second run appends to the first two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import tyro
from torch.nn.utils.rnn import pad_sequence

import gem_core as gem
from gem_core.adapter_kit.settings import model_context, reject, too_small
from gem_core.adapter_kit.update_log import UpdateLog
from gem_core.policies.models import load_model
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.training.advantage import estimators
from gem_core.training.metrics import BatchMetrics
from gem_eval.curves import draw_curves


@dataclass
class Args:
    model: str = "tiny"
    """a model folder, a hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """the advantage estimator, without a critic; grpo and rloo need --samples 2 or more"""
    gamma: float = 0.9
    """the discount per turn"""
    seeds: int = 100_000
    """the number of seeds to train on"""
    updates: int = 60
    """the number of optimizer steps"""
    episodes: int = 128
    """episodes per update"""
    samples: int = 1
    """episodes per seed"""
    max_turn_tokens: int = 24
    """the maximum number of tokens per turn"""
    learning_rate: float = 1e-3
    """the learning rate of Adam"""
    seed: int = 0
    """the seed of sampling and of the order of the environment's seeds"""
    out: str = "runs/no_framework_rebn"
    """the output folder"""
    micro_batch: int = 32
    """sequences per forward pass of the loss; affects memory, not the gradient"""
    eval_episodes: int = 256
    """episodes on held-out seeds, before and after training"""


def main(args: Args) -> None:
    gem.make(args.env).close()  # an unknown environment raises before the model is loaded
    needs = estimators.get(args.advantage).needs
    if "values" in needs or ("groups" in needs and args.samples < 2):
        raise gem.ConfigError(f"{args.advantage} needs a critic or --samples 2; use rebn")
    reject([too_small(f"--{n}", getattr(args, n), 1) for n in ("updates", "samples")])
    count = args.episodes // args.samples
    reject([(not 0 < count <= args.seeds, f"--episodes / --samples is {count}, not 1 to --seeds")])

    # The model, as a policy that samples token ids
    device = "cuda" if torch.cuda.is_available() and args.model != "tiny" else "cpu"
    if args.model == "tiny":
        torch.set_num_threads(1)  # faster for such small matrices
    model, tokenizer = load_model(args.model, device)
    policy = TransformersPolicy(model, tokenizer, seed=args.seed, max_batch=None)
    sampling = gem.Sampling(max_tokens=args.max_turn_tokens)
    limits = gem.Limits(max_context=model_context(model.config))
    rollout = gem.Rollout(
        policy, gem.Renderer(tokenizer), sampling=sampling, limits=limits, concurrency=256
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    held_out = gem.tasks_for(args.env, range(2**30, 2**30 + args.eval_episodes))
    before = success(rollout.run_batch(held_out, evaluation=True))
    print(f"before training: success {before:.1%} on {len(held_out)} held-out seeds", flush=True)
    rng, log = random.Random(args.seed), UpdateLog(args.out, max_failed_updates=1)
    with rollout, gem.RecordWriter(f"{args.out}/episodes.jsonl") as record:
        for step in range(args.updates):
            # Rollout: token-exact episodes with a reward per turn
            seeds = rng.sample(range(args.seeds), count)
            tasks = gem.tasks_for(args.env, seeds, samples=args.samples)
            episodes = rollout.run_batch(tasks, on_episode=record.write)
            # Advantages: one number per turn, broadcast to the tokens of the turn
            per_turn = gem.advantages(episodes, args.advantage, gamma=args.gamma)
            metrics = BatchMetrics.of(episodes, per_turn)
            sequences = [(s, a) for e, a in zip(episodes, per_turn) for s in gem.token_sequences(e)]
            sequences.sort(key=lambda pair: len(pair[0].ids))  # similar lengths share a pass
            # Loss: -1/Z * sum of A * log pi over the Z sampled tokens, summed over micro-batches
            optimizer.zero_grad()
            loss = 0.0
            for first in range(0, len(sequences), args.micro_batch):
                part = sequences[first : first + args.micro_batch]
                ids_B_T = padded([s.ids for s, _ in part], device)
                advantage_B_T = padded([s.broadcast(turns) for s, turns in part], device)
                logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1].float()
                logp_B_T = logits_B_T_V.log_softmax(-1).gather(-1, ids_B_T[:, 1:, None])[..., 0]
                part_loss = -(logp_B_T * advantage_B_T[:, 1:]).sum() / max(metrics.tokens, 1)
                part_loss.backward()
                loss += part_loss.item()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            policy.weight_version += 1
            log.write(step, metrics, loss=loss, grad_norm=grad_norm)
            print(f"update {step}: success {success(episodes):.1%}", flush=True)
        after = success(rollout.run_batch(held_out, evaluation=True))

    levels = {"before, held-out": before}
    draw_curves({args.advantage: [args.out]}, f"{args.out}/curve.png", smooth=10, levels=levels)
    print(f"held-out success: {before:.1%} before, {after:.1%} after; see {args.out}")


def success(episodes: list[gem.Episode]) -> float:
    return BatchMetrics.of(episodes).means().get("success", 0.0)


def padded(numbers: list, device: str) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in numbers], batch_first=True).to(device)


if __name__ == "__main__":
    main(tyro.cli(Args))
