"""Run a program that trains with RL2 on a GPU without SGLang and flash-attn.

    python -m rl2_on_vllm examples/rl2_guess_the_number.py ...

The mock of SGLang starts `vllm_server.py`, which generates with vLLM. The mock of flash-attn calls
the kernels of torch. RL2's trainer, FSDP actor, loss, weight update and router are real.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from rl2_on_cpu import add_mocks, run_program


def prepare() -> None:
    """Install the mocks."""
    add_mocks()
    os.environ.setdefault("RL2_SERVER", str(Path(__file__).with_name("vllm_server.py")))
    import RL2.utils.logging as rl2_logging
    import RL2.utils.sglang as rl2_sglang

    rl2_sglang.get_host = lambda: "127.0.0.1"
    rl2_logging.wandb = SimpleNamespace(log=print_timings)


def print_timings(metrics: Mapping[str, float], step: int) -> None:
    """Print the seconds of the parts of an update, which RL2 sends to wandb only."""
    for name, seconds in metrics.items():
        if name.startswith("timing/"):
            sys.stdout.write(f"\n{name} {seconds:.3f}\n")


if __name__ == "__main__":
    prepare()
    run_program()
