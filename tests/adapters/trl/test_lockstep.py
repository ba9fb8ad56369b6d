"""Ranks that generate together: equal calls and equal sizes on every rank, however ragged the episodes are.

vLLM's server mode, tensor parallelism and sharded weights make generation a collective call; a rank that skips one, or
brings fewer prompts, hangs the others. Two real processes under gloo play ragged episodes against a stand-in for the engine
that asserts just that, and would hang where the protocol is broken.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

RANK = '''
import json, os, sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
from accelerate import Accelerator
from gem_core import register
from gem_core.policies.tiny import load_tiny
import gem_trl.rollout
from gem_trl import GemConfig
sys.path.insert(0, {here!r})
from worlds import Echo

accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
register("test:Echo-v0", Echo)
_, tokenizer = load_tiny()
calls = []

class Engine:
    """As vLLM's server mode: one call of all ranks at a time, sliced by equal sizes."""

    def generate(self, prompts, images, fields, num_generations):
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
        dist.all_gather(sizes, torch.tensor([len(prompts)]))
        assert sizes[0] == sizes[1], f"rank {{rank}} came with {{len(prompts)}} prompts: {{sizes}}"
        assert num_generations == 1
        caps = [torch.zeros(1, dtype=torch.long) for _ in range(2)]
        dist.all_gather(caps, torch.tensor([trainer.vllm_generation.max_completion_length]))
        assert caps[0] == caps[1], f"rank 0's cap is what the server takes for all: {{caps}}"
        calls.append(len(prompts))
        answer = [40 + rank, 41, tokenizer.eos_token_id][: int(caps[0])]
        return [list(answer) for _ in prompts], [[-0.1] * len(answer) for _ in prompts]

engine = Engine()
model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=1024)))
trainer = SimpleNamespace(
    accelerator=accelerator, state=SimpleNamespace(global_step=0), processing_class=tokenizer, model=model, use_vllm=True,
    vllm_mode="server", vllm_generation=SimpleNamespace(max_completion_length=256),
    eos_token_ids=[tokenizer.eos_token_id], _generate_single_turn=engine.generate,
    args=SimpleNamespace(vllm_tensor_parallel_size=1, vllm_max_model_length=1024, max_completion_length=256,
                         temperature=1.0, top_p=1.0, top_k=0,
                         steps_per_generation=1, num_iterations=1, gradient_accumulation_steps=1),
    callback_handler=SimpleNamespace(callbacks=[]), add_callback=lambda callback: None,
)
accelerator.unwrap_model = lambda m: m
spec = GemConfig("test:Echo-v0", max_turn_tokens=8)
rollout = spec.rollout_func
gem_trl.rollout.check_trainer = lambda *args, **kwargs: None  # there is no real trainer to look at
# rank 0 plays one turn each, rank 1 up to three: seeds fix the number of turns (1 + seed % 3)
seeds = [0, 3, 6, 9] if rank == 0 else [0, 1, 2, 5]
prompts = [[{{"role": "user", "content": "", "gem": {{"seed": s}}}}] for s in seeds]
for again in range(2):
    rows = rollout(prompts, trainer)
    assert [len(e.turns) for e in rows["gem_episode"]] == [1 + s % 3 for s in seeds]
    assert all(40 + rank in ids for ids in rows["completion_ids"])
    assert all(t.action_ids == (40 + rank, 41, tokenizer.eos_token_id) for e in rows["gem_episode"] for t in e.turns)
print(json.dumps(calls), flush=True)
'''


def test_ragged_turns_cannot_deadlock(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(here=str(Path(__file__).parent)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        env |= {"MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen([sys.executable, script], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0, 0], said
    calls = [json.loads(out.strip().splitlines()[-1]) for out, _ in said]
    assert calls[0] == calls[1] == [4, 4, 4] * 2, "three rounds of four prompts in each of two rollouts, on both ranks"
