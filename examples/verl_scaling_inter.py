"""ScalingInter-RL in verl: train GuessTheNumber with a horizon that grows from 4 to 7 to 10 turns.

    python examples/verl_scaling_inter.py --model tiny --updates 30
    python examples/verl_scaling_inter.py --horizon 10                     # a fixed horizon, for comparison

Short episodes first teach the model to use each turn; longer ones then let it explore (AgentGym-RL).

verl generates with vLLM and needs a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tyro

from gem_core.policies.models import model_path
from gem_verl import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """a model folder, a hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """an environment id, or a mixture"""
    advantage: str = "rebn"
    """the advantage estimator: any that needs no critic"""
    gamma: float = 0.9
    """the discount per turn"""
    seeds: int = 4096
    """the number of seeds to train on; they repeat if the updates need more"""
    updates: int = 30
    """the number of updates, each with one batch of episodes"""
    episodes: int = 128
    """episodes per update; a multiple of `samples`"""
    samples: int = 2
    """episodes per seed: verl's rollout.n; grpo and rloo need at least 2"""
    max_turn_tokens: int = 24
    """the cap on the tokens of one turn"""
    learning_rate: float = 2e-3
    """the learning rate of AdamW; 2e-3 suits the tiny model, 1e-5 others"""
    seed: int = 0
    """the seed of sampling and of the order of the data"""
    out: str = "runs/verl_scaling_inter"
    """the output folder; a second run appends to its metrics and episodes"""
    horizon: str = "4,7,10@10"
    """turns of an episode: each number for 10 updates, the last one to the end"""
    validate: int = 0
    """held-out seeds to play every 10 updates, greedily"""
    max_prompt: int = 256
    """tokens of the first prompt: verl's data.max_prompt_length"""
    max_response: int = 640
    """tokens after the first prompt, observations included: verl's data.max_response_length"""
    micro_batch: int = 64
    """sequences in one forward pass of the loss; fewer need less memory, the gradient is the same"""
    vllm_memory: float = 0.4
    """the share of the GPU's memory that vLLM takes"""


def main(args: Args) -> None:
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        eval_seeds=args.validate,
        env_kwargs={"max_turns": 10},  # the environment's own limit
        horizon=args.horizon,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes-{{rank}}.jsonl",  # one file per worker
        metrics=f"{args.out}/metrics.jsonl",
    )
    prompts, micro_batch = args.episodes // args.samples, math.gcd(args.micro_batch, args.episodes)
    settings = [
        f"actor_rollout_ref.model.path={model_path(args.model)}",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",  # verl's default, flash-attn, has to be compiled
        "actor_rollout_ref.model.use_remove_padding=False",  # needs flash-attn
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",  # one optimizer step over the whole batch
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={micro_batch}",
        f"actor_rollout_ref.actor.optim.lr={args.learning_rate}",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={args.samples}",
        f"actor_rollout_ref.rollout.seed={args.seed}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={micro_batch}",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={args.vllm_memory}",
        f"data.train_batch_size={prompts}",
        f"data.max_prompt_length={args.max_prompt}",
        f"data.max_response_length={args.max_response}",
        f"data.seed={args.seed}",
        "data.dataloader_num_workers=0",
        f"trainer.total_training_steps={args.updates}",
        f"trainer.total_epochs={args.updates}",  # the smaller of the two counts
        f"trainer.test_freq={10 if args.validate else -1}",
        "trainer.val_before_train=False",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.logger=[console]",
        "trainer.n_gpus_per_node=1",
    ]
    train(config, settings)
    print(
        f"metrics: {args.out}/metrics.jsonl   (gem-rl plot {args.out}; gem-rl view {args.out}/episodes-*.jsonl)"
    )


if __name__ == "__main__":
    main(tyro.cli(Args))
