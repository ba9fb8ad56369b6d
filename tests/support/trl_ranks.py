"""One rank of TRL's tests: real training, and rollouts on a mock engine that needs equal calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from accelerate import Accelerator
from gem_conformance.harness import run_rank
from trl import GRPOConfig
from worlds import ECHO, MOODY, registered

import gem_trl.rollout
from gem_core.errors import EnvError
from gem_core.policies.tiny import load_tiny
from gem_trl import GemConfig, GemGRPOTrainer, GemRollout, trainer_kwargs

MODEL, TOKENIZER = load_tiny()
END = TOKENIZER.eos_token_id


class Engine:
    """A mock of vLLM's server mode: all ranks call it together, with equally many prompts."""

    def __init__(self, rank: int) -> None:
        self.rank, self.calls = rank, []
        self.vllm = SimpleNamespace(max_completion_length=256)

    def generate(
        self, prompts: Any, images: Any, fields: Any, num_generations: int
    ) -> tuple[list[Any], list[Any]]:
        assert num_generations == 1
        sizes = self._of_all_ranks(len(prompts))
        caps = self._of_all_ranks(self.vllm.max_completion_length)
        assert sizes[0] == sizes[1], f"rank {self.rank} has {len(prompts)} prompts: {sizes}"
        assert caps[0] == caps[1], f"the server uses rank 0's token limit for all: {caps}"
        self.calls.append(len(prompts))
        ids = [40 + self.rank, 41, END][: caps[0]]
        return [list(ids) for _ in prompts], [[-0.1] * len(ids) for _ in prompts]

    def _of_all_ranks(self, number: int) -> list[int]:
        numbers = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
        torch.distributed.all_gather(numbers, torch.tensor([number]))
        return [int(n) for n in numbers]


def play(seeds: list[int]) -> list[int]:
    """Play the seeds twice; return the sizes of the engine's calls."""
    accelerator = Accelerator(cpu=True)
    accelerator.unwrap_model = lambda model: model
    engine = Engine(accelerator.process_index)
    trainer = SimpleNamespace(
        accelerator=accelerator,
        state=SimpleNamespace(global_step=0),
        processing_class=TOKENIZER,
        model=SimpleNamespace(config=SimpleNamespace(max_position_embeddings=1024), training=True),
        use_vllm=True,
        vllm_mode="server",
        vllm_generation=engine.vllm,
        eos_token_ids=[END],
        _generate_single_turn=engine.generate,
        args=SimpleNamespace(
            vllm_tensor_parallel_size=1,
            vllm_max_model_length=1024,
            max_completion_length=256,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            steps_per_generation=1,
            num_iterations=1,
            gradient_accumulation_steps=1,
        ),
        add_callback=lambda callback: None,
    )
    gem_trl.rollout.check_settings = lambda *args: None  # the trainer is a mock
    rollout = GemRollout(GemConfig(ECHO, max_turn_tokens=8))
    prompts = [[{"role": "user", "content": "", "gem": {"seed": seed}}] for seed in seeds]
    for _ in range(2):
        episodes = [row.episode for row in rollout(prompts, trainer)["gem_row"]]
        assert [len(e.turns) for e in episodes] == [1 + seed % 3 for seed in seeds]
        assert all(t.action_ids == (40 + engine.rank, 41, END) for e in episodes for t in e.turns)
    return engine.calls


def make_trainer(config: GemConfig, folder: str, **settings: Any) -> GemGRPOTrainer:
    """Make a trainer with two episodes per rank and update; `settings` of GRPOConfig."""
    args = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=128,
        learning_rate=1e-3,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    return GemGRPOTrainer(
        model=MODEL, args=args, processing_class=TOKENIZER, **trainer_kwargs(config)
    )


def train(config: GemConfig, folder: str) -> None:
    """Train the model for at most five updates."""
    make_trainer(config, folder, max_steps=1 if config.metrics else 5).train()


def weights() -> float:
    return sum(parameter.double().abs().sum().item() for parameter in MODEL.parameters())


def work(value: tuple[str, list[int]]) -> dict[str, Any]:
    """Train, train on an environment that fails, and play the seeds in lockstep."""
    folder, seeds = value
    files = {"record": f"{folder}/e-{{rank}}.jsonl", "metrics": f"{folder}/m.jsonl"}
    result: dict[str, Any] = {"before": weights()}
    train(GemConfig(ECHO, seeds=[2, 5], max_turn_tokens=6, **files), folder)
    result["weights"] = weights()
    try:
        train(GemConfig(MOODY, seeds=[1, 3, 5, 7], max_turn_tokens=6), folder)
    except EnvError as error:
        result["error"] = str(error)
    return {**result, "calls": play(seeds)}


if __name__ == "__main__":
    with registered():
        run_rank(work)
