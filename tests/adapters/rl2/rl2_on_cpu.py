"""Run a program that trains with RL2 on a machine without a GPU.

    python -m rl2_on_cpu examples/rl2_guess_the_number.py ...

Mocks replace the parts that need a GPU: SGLang's server (`sglang_server.py`), flash-attn (not
called), and the FSDP around RL2's actor (`gem_rl2.unsharded_actor`). The router and RL2's trainer,
rollout, data, loss, optimizer step and weight update are real.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

MOCKS = Path(__file__).parent / "mocks"


def add_mocks() -> None:
    """Put the mocks on the path, and set torchrun's variables for one process."""
    sys.path.insert(0, str(MOCKS))
    # ring-flash-attn uses torch.jit.script
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
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


def prepare_process() -> None:
    """Add the mocks, and replace the parts of CUDA that RL2 needs."""
    add_mocks()
    import torch

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

    from gem_core.adapter_kit.ports import free_port
    from gem_rl2.unsharded_actor import UnshardedActor, UnshardedCritic

    rl2_sglang.get_host = lambda: "127.0.0.1"
    rl2_sglang.get_available_port = free_port
    rl2_ppo.initialize_global_process_group = start_gloo
    rl2_ppo.Actor, rl2_ppo.Critic = UnshardedActor, UnshardedCritic


@contextmanager
def fsdp() -> Iterator[None]:
    """Let RL2's own actor run on the CPU: FSDP under gloo, and the mock of flash-attn."""
    import RL2.utils.data_parallelism as rl2_fsdp
    import torch
    import transformers.modeling_flash_attention_utils as transformers_flash
    from torch.distributed import device_mesh
    from transformers import PreTrainedModel

    from gem_core.adapter_kit.patching import patched

    def mesh(device: str, *args: Any, **kwargs: Any) -> Any:
        return init_device_mesh("cpu", *args, **kwargs)

    def wrap(model: Any, **kwargs: Any) -> Any:
        on_cpu = {"device_id": torch.device("cpu"), "sync_module_states": False}
        return sharded(model, **{**kwargs, **on_cpu})

    init_device_mesh, sharded = device_mesh.init_device_mesh, rl2_fsdp.FSDP
    with (
        patched(device_mesh, "init_device_mesh", mesh),
        patched(rl2_fsdp, "FSDP", wrap),
        patched(PreTrainedModel, "_flash_attn_2_can_dispatch", lambda *args, **kwargs: True),
        patched(transformers_flash, "is_flash_attn_2_available", lambda: True),
    ):
        yield


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
