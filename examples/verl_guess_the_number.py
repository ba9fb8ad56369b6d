"""Train a model on GuessTheNumber with verl's default PPO trainer and per-turn advantages.

    python examples/verl_guess_the_number.py --model tiny --updates 20
    python examples/verl_guess_the_number.py --model smollm2
    python examples/verl_guess_the_number.py --advantage grpo --samples 8

verl generates with vLLM, which needs a GPU. Writes metrics.jsonl and episodes.jsonl to --out.
"""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from gem_core.policies.models import model_path
from gem_verl import GemConfig, train


@dataclass
class Args:
    model: str = "tiny"
    """model folder, hub name, `tiny` (ships with gem) or `smollm2`"""
    env: str = "game:GuessTheNumber-v0-easy"
    """environment id, or a mixture such as `2*game:A + 1*game:B`"""
    advantage: str = "rebn"
    """advantage estimator; `gae` trains a critic, which verl loads with flash-attn"""
    gamma: float = 0.9
    """discount per turn"""
    seeds: int = 4096
    """number of seeds to train on; they repeat if the updates need more"""
    updates: int = 60
    """number of updates, each on one batch of episodes"""
    episodes: int | None = None
    """episodes per update (a multiple of `samples`); default: 128 for `tiny`, 256 for others"""
    samples: int = 2
    """episodes per seed; `grpo` and `rloo` need at least 2 (verl's rollout.n)"""
    max_turn_tokens: int = 24
    """token cap of one turn"""
    learning_rate: float | None = None
    """learning rate; default: 2e-3 for the tiny model, else 3e-5; above 1B, 1e-6 is usual"""
    seed: int = 0
    """seed of sampling and of the order of the dataset"""
    out: str = "runs/verl_guess_the_number"
    """output folder; a second run appends to its metrics and episodes"""
    validate: int = 0
    """number of held-out seeds to play greedily every 10 updates"""
    max_prompt: int = 256
    """tokens for the first prompt; with max_response the cap of an episode (max_prompt_length)"""
    max_response: int = 384
    """token cap of everything after the first prompt (verl's data.max_response_length)"""
    micro_batch_tokens: int = 16384
    """tokens in one forward pass; does not change the gradient"""
    vllm_memory: float = 0.4
    """share of the GPU memory for vLLM"""
    skip_old_logprobs: bool = False
    """skip the forward pass for old logprobs; the metrics then have no logprob_gap"""


def main(args: Args) -> None:
    tiny = args.model == "tiny"
    rate = (2e-3 if tiny else 3e-5) if args.learning_rate is None else args.learning_rate
    episodes = (128 if tiny else 256) if args.episodes is None else args.episodes
    config = GemConfig(
        args.env,
        seeds=args.seeds,
        eval_seeds=args.validate,
        advantage=args.advantage,
        gamma=args.gamma,
        max_turn_tokens=args.max_turn_tokens,
        record=f"{args.out}/episodes.jsonl",
        metrics=f"{args.out}/metrics.jsonl",
    )
    prompts = episodes // args.samples
    settings = [
        f"actor_rollout_ref.model.path={model_path(args.model)}",
        # gem's attention over packed sequences; verl's default, flash-attn, has to be compiled
        "+actor_rollout_ref.model.override_config.attn_implementation=torch_varlen",
        # packed sequences; without fused kernels, verl computes logprobs one token at a time
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.use_fused_kernels=True",
        "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",  # one optimizer step per batch
        "actor_rollout_ref.actor.use_dynamic_bsz=True",  # also for logprobs and the critic
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={args.micro_batch_tokens}",
        f"actor_rollout_ref.actor.optim.lr={rate}",
        "critic.model.use_remove_padding=False",
        f"critic.ppo_max_token_len_per_gpu={args.micro_batch_tokens}",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={args.samples}",
        f"actor_rollout_ref.rollout.seed={args.seed}",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        f"actor_rollout_ref.rollout.gpu_memory_utilization={args.vllm_memory}",
        f"data.train_batch_size={prompts}",
        f"data.max_prompt_length={args.max_prompt}",
        f"data.max_response_length={args.max_response}",
        f"data.seed={args.seed}",
        f"trainer.total_training_steps={args.updates}",
        f"trainer.total_epochs={args.updates}",  # verl stops at the smaller of the two
        f"trainer.test_freq={10 if args.validate else -1}",
        "trainer.val_before_train=False",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.logger=[console]",
        "trainer.n_gpus_per_node=1",
        # each reserves a core; verl's default of 8 does not fit on a machine with 8 cores
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=2",
    ]
    if args.skip_old_logprobs:  # a loss without PPO's ratio, which is 1 in the only step of a batch
        settings.append("algorithm.rollout_correction.bypass_mode=True")
        settings.append("actor_rollout_ref.actor.policy_loss.loss_mode=gpg")
    train(config, settings)
    print(f"metrics: {args.out}/metrics.jsonl")
    print(f"next: gem-rl plot {args.out}; gem-rl view {args.out}/episodes.jsonl")


if __name__ == "__main__":
    main(tyro.cli(Args))
