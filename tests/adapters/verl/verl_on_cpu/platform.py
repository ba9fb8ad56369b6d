"""Platform: a mock that makes verl run on a CPU instead of an accelerator."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

_RETURN_VALUES = {
    "is_available": True,
    "current_device": "cpu",
    "device_count": 1,
    "mem_get_info": (8 << 30, 16 << 30),
    "get_device_name": "CPU",
}


class _Device(types.ModuleType):
    """Mock of `torch.cuda`: functions return a fixed value or None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("get_rng_state", "set_rng_state", "manual_seed"):
            return getattr(torch, name)
        if name == "manual_seed_all":
            return torch.manual_seed
        value = 0 if name.startswith(("memory_", "max_memory_")) else _RETURN_VALUES.get(name)
        return lambda *args, **kwargs: value


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Platform with one device, the CPU, which Ray counts as a GPU."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _Device("verl_on_cpu.device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


_init_process_group = torch.distributed.init_process_group


def _init_with_one_backend(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
    """Start a process group. verl names a backend for the CPU twice, which torch rejects."""
    return _init_process_group(
        "gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs
    )


torch.distributed.init_process_group = _init_with_one_backend


_load_critic = transformers.AutoModelForTokenClassification.from_pretrained


def _load_critic_without_flash_attention(*args: Any, **kwargs: Any) -> Any:
    """Load a critic. verl always requests flash-attn for it, which needs a GPU."""
    return _load_critic(*args, **{**kwargs, "attn_implementation": "eager"})


transformers.AutoModelForTokenClassification.from_pretrained = _load_critic_without_flash_attention
