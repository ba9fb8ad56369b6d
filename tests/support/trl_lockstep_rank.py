"""One rank of TRL's lockstep test: two rollouts on a mock engine that needs equal calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from accelerate import Accelerator
from gem_conformance.harness import run_rank
from worlds import ECHO, registered

import gem_trl.rollout
from gem_core.policies.tiny import load_tiny
from gem_trl import GemConfig, GemRollout

_, TOKENIZER = load_tiny()
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
        episodes = rollout(prompts, trainer)["gem_episode"]
        assert [len(e.turns) for e in episodes] == [1 + seed % 3 for seed in seeds]
        assert all(t.action_ids == (40 + engine.rank, 41, END) for e in episodes for t in e.turns)
    return engine.calls


if __name__ == "__main__":
    with registered():
        run_rank(play)
