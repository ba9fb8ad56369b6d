"""Train a model of 1.7B parameters with random weights on long episodes, in TRL or verl.

    python benchmarks/large_shape.py model runs/large         # the shape of SmolLM2-1.7B
    python benchmarks/large_shape.py trl runs/large
    python benchmarks/large_shape.py verl runs/large

The last two need one GPU and vLLM. An update has 32 episodes of 20 turns and about 8,000 tokens.
The model learns nothing: its turns are random tokens up to their cap, the household world answers
that nothing happens, and the reward is 0. The benchmark shows that the sizes of real use fit and
that the context limit holds. The result, a JSON file, goes to benchmarks/results/gpu.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from gem_core import GemError, read_episodes, token_sequences
from gem_core.errors import ConfigError
from gem_core.policies.models import load_model, model_path

RESULTS = Path(__file__).parent / "results" / "gpu"
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
"""SmolLM2-1.7B's; vocabulary and tokenizer are those of SmolLM2-135M."""


@dataclass
class Args:
    what: tyro.conf.Positional[Literal["model", "trl", "verl"]]
    """write the model, or train it with this trainer"""
    model: tyro.conf.Positional[str]
    """the folder of the model"""
    updates: int = 3
    """number of updates"""
    episodes: int = 32
    """episodes per update"""
    turns: int = 20
    """turns per episode"""
    turn_tokens: int = 320
    """token cap of one turn"""
    context: int = 8192
    """token cap of an episode"""
    micro_batch: int = 2
    """episodes in one forward pass"""
    vllm: bool = True
    """generate with vLLM (TRL; verl always does)"""
    shared: bool = False
    """other programs use the GPU, so docs/gpu.md must not show the seconds and the memory"""
    out: Path = RESULTS
    """folder of the result"""


def write_model(folder: str) -> None:
    """Write a Llama model with random weights, and SmolLM2's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    _, tokenizer = load_model("smollm2")
    config = AutoConfig.from_pretrained(model_path("smollm2"))
    config.update({**SHAPE, "head_dim": SHAPE["hidden_size"] // SHAPE["num_attention_heads"]})
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{model.num_parameters() / 1e9:.2f}B parameters in {folder}")


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """Sample the used memory of the GPU four times a second; the list has the peak in GiB."""
    peak, done = [0.0], threading.Event()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]

    def sample() -> None:
        while not done.wait(0.25):
            used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            peak[0] = max(peak[0], max(map(float, used.split())) / 1024)

    thread = threading.Thread(target=sample, daemon=True)
    if torch.cuda.is_available():
        thread.start()
    try:
        yield peak
    finally:
        done.set()


def settings(args: Args, folder: Path) -> dict[str, Any]:
    """Return the arguments of a `GemConfig`."""
    return {
        "env_id": "household:Any-v0",
        "seeds": 1024,
        "gamma": 0.9,
        "env_kwargs": {"max_turns": args.turns},
        "max_turn_tokens": args.turn_tokens,
        "max_context": args.context,
        "record": str(folder / "episodes.jsonl"),
        "metrics": str(folder / "metrics.jsonl"),
    }


def train_trl(args: Args, folder: Path) -> None:
    """Train with TRL's GRPOTrainer."""
    from trl import GRPOConfig

    from gem_trl import GemConfig, train

    gpu = torch.cuda.is_available()
    grpo = GRPOConfig(
        output_dir=str(folder / "trainer"),
        max_steps=args.updates,
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.episodes // args.micro_batch,
        num_generations=2,
        max_completion_length=args.context,
        learning_rate=1e-6,
        loss_type="dapo",
        use_vllm=args.vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=args.context if args.vllm else None,
        generation_kwargs={"detokenize": False} if args.vllm else None,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=gpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    model, tokenizer = load_model(args.model, "cuda" if gpu else "cpu")
    config = GemConfig(**settings(args, folder))
    train(config, {"model": model, "args": grpo, "processing_class": tokenizer})


def train_verl(args: Args, folder: Path) -> None:
    """Train with verl's default PPO trainer, with the settings of its recipe."""
    from gem_verl import GemConfig, train

    prompt = 512  # the first prompt has about 300 tokens
    tokens = args.micro_batch * args.context
    train(
        GemConfig(**settings(args, folder)),
        [
            f"actor_rollout_ref.model.path={model_path(args.model)}",
            "+actor_rollout_ref.model.override_config.attn_implementation=torch_varlen",
            "actor_rollout_ref.model.use_remove_padding=True",
            "actor_rollout_ref.model.use_fused_kernels=True",
            "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={args.episodes // 2}",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
            f"data.train_batch_size={args.episodes // 2}",
            f"data.max_prompt_length={prompt}",
            f"data.max_response_length={args.context - prompt}",
            "data.dataloader_num_workers=0",
            f"trainer.total_training_steps={args.updates}",
            f"trainer.total_epochs={args.updates}",
            "trainer.test_freq=-1",
            "trainer.val_before_train=False",
            "trainer.save_freq=-1",
            "trainer.resume_mode=disable",
            "trainer.logger=[console]",
            "trainer.n_gpus_per_node=1",
        ],
    )


def summary(args: Args, folder: Path, memory: float) -> dict[str, Any]:
    """Return what was measured; raise `ConfigError` if an episode exceeds the context limit."""
    episodes = list(read_episodes(folder / "episodes.jsonl"))
    lengths = [len(sequence.ids) for e in episodes for sequence in token_sequences(e)]
    if max(lengths) > args.context:
        raise ConfigError(f"an episode has {max(lengths)} tokens; the limit is {args.context}")
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    updates = [json.loads(line) for line in text.splitlines()]
    return {
        "trainer": args.what,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "episodes": args.episodes,
        "failed": sum(e.failed for e in episodes),
        "turns": sorted({len(e.turns) for e in episodes}),
        "longest": max(lengths),
        "mean_tokens": round(sum(lengths) / len(lengths)),
        "context": args.context,
        "seconds": [round(update["seconds"], 2) for update in updates],
        "peak_gib": round(memory, 1),
        "alone": not args.shared,
    }


def main(args: Args) -> int:
    """Write the model, or train it and write the result."""
    if args.what == "model":
        write_model(args.model)
        return 0
    if args.what == "verl" and not args.vllm:
        raise ConfigError("verl always generates with vLLM; remove --no-vllm")
    if args.episodes % (2 * args.micro_batch):
        raise ConfigError(
            f"--episodes must be a multiple of 2 * micro_batch = {2 * args.micro_batch}, because "
            f"every seed is played twice; got {args.episodes}"
        )
    folder = Path("runs") / f"large_{args.what}_{int(time.time())}"
    folder.mkdir(parents=True)
    with peak_memory() as peak:
        (train_trl if args.what == "trl" else train_verl)(args, folder)
    result = summary(args, folder, peak[0])
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"large_{args.what}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args)))
    except (GemError, OSError) as error:
        sys.exit(f"error: {error}")
