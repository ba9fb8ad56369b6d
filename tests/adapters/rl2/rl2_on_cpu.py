"""Run a program that trains with RL2 on a machine without a GPU.

    python -m rl2_on_cpu examples/rl2_guess_the_number.py ...

Mocks replace the parts that need a GPU: SGLang's server (`sglang_server.py`), flash-attn (never
called), and the FSDP around RL2's actor (`gem_rl2.unsharded_actor`). The router and RL2's trainer,
rollout, data, loss, optimizer step and weight update are real.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from datetime import timedelta
from pathlib import Path

MOCKS = Path(__file__).parent / "mocks"


def prepare_process() -> None:
    """Put the mocks on the path, and replace the parts of CUDA and torchrun that RL2 needs."""
    sys.path.insert(0, str(MOCKS))
    # ring-flash-attn uses torch.jit.script
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
    import torch

    from gem_core.adapter_kit.ports import free_port

    torchrun_variables = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    for name, value in {**torchrun_variables, "WANDB_MODE": "disabled"}.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *args: None  # type: ignore[assignment]


def start_gloo(*args: object) -> None:
    """Start a process group on the CPU; replaces RL2's `initialize_global_process_group`."""
    import torch.distributed

    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=10))


def prepare() -> None:
    """Install the mocks for the release."""
    prepare_process()
    import RL2.trainer.ppo as rl2_ppo
    import RL2.utils.sglang as rl2_sglang

    from gem_rl2.unsharded_actor import UnshardedActor, UnshardedCritic

    rl2_sglang.get_host = lambda: "127.0.0.1"
    rl2_ppo.initialize_global_process_group = start_gloo
    rl2_ppo.Actor, rl2_ppo.Critic = UnshardedActor, UnshardedCritic


def run_program() -> None:
    """Run the program, or the module after `-m`, on the command line."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    prepare()
    run_program()
