"""Train a model on GuessTheNumber with SkyRL's PPO trainers and per-turn advantages.

    python examples/skyrl_guess_the_number.py --model tiny --updates 20
    python examples/skyrl_guess_the_number.py --advantage gae --learning-rate 1e-3
    python examples/skyrl_guess_the_number.py --staleness 2 --advantage grpo --samples 8

SkyRL generates with vLLM, which needs a GPU. Writes metrics.jsonl and episodes.jsonl to --out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import tyro
from transformers import AutoConfig

from gem_core.policies.models import model_path, save_untied
from gem_skyrl import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator; `gae` trains a critic"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on; they repeat if the updates need more"""
    updates: int = 60
    """number of updates, each on one batch of episodes"""
    episodes: int | None = None
    """episodes per update (a multiple of `samples`); default: 128 for `tiny`, 256 for others"""
    samples: int = 2
    """episodes per seed; `grpo` and `rloo` need at least 2"""
    staleness: int = 0
    """updates that generation may be ahead of training; above 0, fully async on two GPUs"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    max_context: int = 640
    """token cap of prompt and generation together"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """seed of sampling and of the order of the prompts"""
    validate: int = 0
    """number of held-out seeds to play greedily every 10 updates"""
    micro_batch: int = 64
    """sequences in one forward pass; does not change the gradient"""
    vllm_memory: float = 0.4
    """share of the GPU memory for vLLM"""
    eager: bool = False
    """do not compile vLLM's model: it starts faster and generates more slowly"""
    save_every: int = 0
    """updates between two checkpoints, in checkpoints/ of the output folder; 0: none"""
    settings: tuple[str, ...] = ()
    """more settings of SkyRL, such as trainer.gradient_checkpointing=false for small models"""
    out: str = "runs/skyrl_guess_the_number"
    """output folder; a second run resumes from the last checkpoint, or appends if there is none"""


def main(args: Args) -> None:
    out = Path(args.out).absolute()
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        eval_seeds=args.validate,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=str(out / "episodes.jsonl"),
        metrics=str(out / "metrics.jsonl"),
    )
    tiny, asynchronous = args.model == "tiny", args.staleness > 0
    rate = (2e-3 if tiny else 3e-5) if args.learning_rate is None else args.learning_rate
    episodes = (128 if tiny else 256) if args.episodes is None else args.episodes
    prompts, micro_batch = episodes // args.samples, math.gcd(args.micro_batch, episodes)
    model = model_path(args.model)
    if AutoConfig.from_pretrained(model).tie_word_embeddings:
        model = save_untied(model, str(out / "model"))  # FSDP's workers separate tied weights
    settings = [
        f"trainer.policy.model.path={model}",
        f"trainer.policy.optimizer_config.lr={rate}",
        "trainer.algorithm.use_kl_loss=false",
        # SkyRL's async trainer compares with the logprobs of the sampler
        f"trainer.algorithm.policy_loss_type={'rollout_is' if asynchronous else 'regular'}",
        f"trainer.train_batch_size={prompts}",
        f"trainer.policy_mini_batch_size={prompts}",  # one optimizer step per batch
        f"trainer.critic_mini_batch_size={prompts}",
        f"trainer.micro_train_batch_size_per_gpu={micro_batch}",
        f"trainer.micro_forward_batch_size_per_gpu={micro_batch}",
        f"trainer.max_training_steps={args.updates}",
        f"trainer.epochs={2 * args.updates}",  # the steps end the run; resuming may skip an epoch
        f"trainer.placement.colocate_all={not asynchronous}",
        f"trainer.fully_async.enabled={asynchronous}",
        f"trainer.fully_async.max_staleness_steps={args.staleness}",
        f"trainer.fully_async.num_parallel_generation_workers={prompts}",
        "trainer.flash_attn=false",  # otherwise flash-attn has to be compiled
        "trainer.remove_microbatch_padding=false",  # needs flash-attn
        f"trainer.seed={args.seed}",
        "trainer.eval_before_train=false",
        f"trainer.eval_interval={10 if args.validate else -1}",
        f"trainer.ckpt_interval={args.save_every}",
        f"trainer.ckpt_path={out}/checkpoints",
        f"trainer.export_path={out}/exports",
        f"trainer.log_path={out}/logs",
        "trainer.logger=console",
        "trainer.enable_ray_gpu_monitor=false",  # writes to wandb only
        "generator.inference_engine.enable_ray_prometheus_stats=false",  # needs Ray's dashboard
        f"generator.n_samples_per_prompt={args.samples}",
        f"generator.max_input_length={args.max_context - args.max_turn_tokens}",
        f"generator.sampling_params.max_generate_length={args.max_turn_tokens}",
        f"generator.inference_engine.gpu_memory_utilization={args.vllm_memory}",
        f"generator.inference_engine.enforce_eager={args.eager}",
    ]
    if config.needs_values:
        settings.append(f"trainer.critic.model.path={model}")
        settings.append(f"trainer.critic.optimizer_config.lr={rate}")
    train(config, [*settings, *args.settings])
    print(f"metrics: {out}/metrics.jsonl")
    print(f"next: gem-rl plot {out}; gem-rl view {out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
