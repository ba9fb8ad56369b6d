"""oat on CPU: mocks of the CUDA functions that oat 0.2.4 and DeepSpeed 0.16.8 call. Tests only.

The mock of vllm imports this module. oat imports vllm before it calls CUDA.
"""

from __future__ import annotations

import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.comm.torch
import deepspeed.ops.adam
import torch

assert not torch.cuda.is_available(), "this machine has CUDA: use the real vllm"
torch.cuda.device_count = lambda: 8  # oat checks it against `gpus`
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.set_device = lambda device: None
torch.cuda.synchronize = lambda device=None: None

# DeepSpeed would compile both at the first use: one needs an x86 header, the other nvcc.
# The module is in sys.modules only: the attribute `deepspeed.comm.torch` is torch itself.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
deepspeed.ops.adam.FusedAdam = torch.optim.AdamW
