"""Train a model on GuessTheNumber with OpenRLHF's train_ppo_ray and per-turn advantages.

    python examples/openrlhf_guess_the_number.py --model tiny --updates 20         # two GPUs
    python examples/openrlhf_guess_the_number.py --model smollm2 --colocate        # one GPU
    python examples/openrlhf_guess_the_number.py --asynchronous --advantage grpo --samples 8

Writes metrics.jsonl and episodes.jsonl to --out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import tyro

from gem_core.errors import ConfigError
from gem_core.policies.models import model_path
from gem_openrlhf import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator; `gae` loads a critic on one more GPU"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on; they repeat, in whole epochs, if the updates need more"""
    updates: int = 60
    """number of updates, each on one batch of episodes; the last epoch is completed"""
    episodes: int | None = None
    """episodes per update; default: 128 for the tiny model, 256 for others"""
    samples: int = 2
    """episodes per seed; `grpo` and `rloo` need at least 2"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """seed of sampling and of the order of the dataset"""
    out: str = "runs/openrlhf_guess_the_number"
    """output folder; a second run appends to its metrics and episodes"""
    max_len: int = 1024
    """token cap of an episode, observations included"""
    micro_batch: int = 64
    """sequences in one forward pass; must divide `episodes`"""
    asynchronous: bool = False
    """play the next batch while the current one is trained"""
    colocate: bool = False
    """share one GPU between training and vLLM, instead of one GPU each"""
    sleep: bool = False
    """with `colocate`: vLLM and DeepSpeed free their memory in turn; slower, for larger models"""
    correction: str = "off"
    """importance correction with vLLM's logprobs: off, token or seq"""
    attention: str = "sdpa"
    """attention implementation of the trained model"""
    vllm_memory: float = 0.3
    """share of the GPU memory for vLLM"""
    eager: bool = False
    """generate without CUDA graphs: vLLM starts sooner and generates more slowly"""


def main(args: Args) -> None:
    tiny, out = args.model == "tiny", Path(args.out).absolute()
    rate = (2e-3 if tiny else 3e-5) if args.learning_rate is None else args.learning_rate
    episodes = (128 if tiny else 256) if args.episodes is None else args.episodes
    prompts = episodes // args.samples
    batches = min(args.seeds // prompts, args.updates)  # in one epoch
    if batches < 1:
        raise ConfigError(f"an update needs --episodes / --samples seeds; got {args.seeds}")
    if args.sleep and (args.asynchronous or not args.colocate):
        raise ConfigError("--sleep needs --colocate, and does not support --asynchronous")
    config = GemConfig(
        args.env,
        seeds=batches * prompts,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{out}/episodes.jsonl",
        metrics=f"{out}/metrics.jsonl",
    )
    settings = {
        "actor.model_name_or_path": model_path(args.model),
        "actor.num_gpus_per_node": 1,
        "actor.adam.lr": rate,
        "actor.lr_scheduler": "constant",
        "algo.advantage.is_correction_level": args.correction,
        "algo.kl.init_coef": 0,
        "ckpt.output_dir": f"{out}/model",
        "ckpt.path": f"{out}/checkpoints",
        "critic.num_gpus_per_node": 1,
        "data.max_len": args.max_len,
        "ds.attn_implementation": args.attention,
        "rollout.batch_size": prompts,
        "rollout.micro_batch_size": args.micro_batch,
        "rollout.n_samples_per_prompt": args.samples,
        "train.batch_size": episodes,
        "train.micro_batch_size": args.micro_batch,
        "train.num_episodes": math.ceil(args.updates / batches),  # epochs
        "train.seed": args.seed,
        "vllm.gpu_memory_utilization": args.vllm_memory,
        "vllm.num_engines": 1,
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    flags += ["--actor.adam.betas", "0.9", "0.999"]  # torch's; OpenRLHF's second is 0.95
    if args.eager:
        flags.append("--vllm.enforce_eager")
    if args.asynchronous:
        flags.append("--train.async_enable")
    if args.colocate:
        flags.append("--train.colocate_all")
    if args.sleep:
        flags += ["--vllm.enable_sleep", "--ds.enable_sleep"]
    train(config, flags, f"{out}/data.jsonl")
    print(f"metrics: {out}/metrics.jsonl")
    print(f"next: gem-rl plot {out}; gem-rl view {out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
