"""Runs a program that trains with RL2 on a machine without a GPU: `python on_cpu.py examples/rl2_guess_the_number.py ...`.

What cannot be had there is stood in for, and nothing else: SGLang's server (`sglang_server.py`), flash-attn (never called), and
the FSDP around RL2's actor (`gem_rl2.plain`). The router, RL2's trainer, rollout, data, advantages, loss and optimizer step, and
the way of the weights are real.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path

STAND_INS = Path(__file__).parent / "stand_ins"


def prepare() -> None:
    """Puts the stand-ins in place. An RL2 given as a checkout is found first."""
    sys.path.insert(0, str(STAND_INS))
    if checkout := os.environ.get("RL2_CHECKOUT"):
        sys.path.insert(0, checkout)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("WANDB_MODE", "disabled")

    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # in ring-flash-attn

    import torch

    from gem_rl2.interface import which_rl2

    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *args: None  # type: ignore[assignment]
    main = which_rl2() == "main"
    comm = import_module("RL2.utils.communication" if main else "RL2.utils.comm")

    def on_gloo(*args: object) -> None:
        torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=10))
        comm.GLOO_GROUP = torch.distributed.group.WORLD  # type: ignore[attr-defined]

    comm.initialize_global_process_group = on_gloo  # type: ignore[attr-defined]
    hosted = import_module("RL2.workers.rollout" if main else "RL2.utils.sglang")
    hosted.get_host = lambda: "127.0.0.1"  # type: ignore[attr-defined]

    from gem_rl2.plain import PlainActor

    ppo = import_module("RL2.trainer.ppo")
    ppo.initialize_global_process_group = on_gloo  # type: ignore[attr-defined]
    setattr(ppo, "initialize_actor" if main else "Actor", PlainActor)


if __name__ == "__main__":
    prepare()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
