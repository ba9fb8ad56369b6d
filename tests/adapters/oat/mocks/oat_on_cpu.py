"""What oat 0.2.4 and DeepSpeed 0.16.8 take for granted of a machine with CUDA, mapped onto one without. Tests only.

Imported by the mocks of launchpad and vllm, one of which oat imports before it reads anything of this.
"""

from __future__ import annotations

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.comm.torch
import deepspeed.ops.adam
import torch

assert not torch.cuda.is_available(), "this machine has CUDA: use the real launchpad and vllm"
torch.cuda.device_count = lambda: 8  # checked against `gpus`
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.set_device = lambda device: None
torch.cuda.synchronize = lambda device=None: None

# both would be compiled on first use: the one needs an x86 header, the other nvcc
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: (
    None
)  # the attribute of that name is torch itself
deepspeed.ops.adam.FusedAdam = torch.optim.AdamW
