"""Run a program that trains with RL2 on a machine without a GPU: `python -m rl2_on_cpu examples/rl2_guess_the_number.py ...`.

Mocks replace what needs a GPU: SGLang's server (`sglang_server.py`), flash-attn (never called), and the FSDP around RL2's actor
(`gem_rl2.unsharded_actor`). The router, RL2's trainer, rollout, data, loss and optimizer step, and the weight update are real.
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
    """Put the mocks on the path, and replace what every RL2 needs of CUDA and torchrun."""
    sys.path.insert(0, str(MOCKS))
    warnings.filterwarnings(
        "ignore", message="`torch.jit.script` is deprecated"
    )  # in ring-flash-attn
    import torch

    from gem_core.adapter_kit.conformance.harness import free_port

    launched = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    for name, value in {**launched, "WANDB_MODE": "disabled"}.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *args: None  # type: ignore[assignment]


def start_gloo(*args: object) -> None:
    """RL2's `initialize_global_process_group` on the CPU."""
    import torch.distributed

    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=10))


def prepare() -> None:
    """Put the mocks in place for the release."""
    prepare_process()
    import RL2.trainer.ppo as rl2_ppo
    import RL2.utils.sglang as rl2_sglang

    from gem_rl2.unsharded_actor import UnshardedActor

    rl2_sglang.get_host = lambda: "127.0.0.1"
    rl2_ppo.initialize_global_process_group = start_gloo
    rl2_ppo.Actor = UnshardedActor


def run_program() -> None:
    """Run the program, or the module after `-m`, that the command line names."""
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    prepare()
    run_program()
