"""SkyRL on CPU: mocks that run SkyRL's FSDP workers and trainers without a GPU.

    PYTHONPATH=tests/adapters/skyrl:tests/support python -m skyrl_on_cpu \\
        examples/skyrl_guess_the_number.py

runs a program that trains with `gem_skyrl.train`. Ray counts GPUs that do not exist. The workers
shard their models with FSDP2 over gloo. The inference engine is the tiny model in the trainer's
process; weights reach it through a file instead of NCCL. Everything is float32. Advantages, losses,
optimizers, checkpoints and rollouts are SkyRL's and gem's own.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import tempfile
from typing import Any

import flash_attn_mock  # noqa: F401 - before SkyRL
import ray
import torch
from peft import PeftModel
from ray_start import start_ray
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface
from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker
from worlds import ECHO, MOODY

from gem_core import register
from gem_core.policies.tiny import load_folder
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import Sampling
from gem_skyrl import GemExp, trainer

__all__ = ["SETTINGS", "CpuExp", "FileEngine", "start_mock_gpus"]

GPUS = 8
_FLOAT = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
SETTINGS = [
    "trainer.flash_attn=false",
    "trainer.remove_microbatch_padding=false",  # needs flash-attn, which is slow here
    "trainer.placement.colocate_all=false",
    "trainer.gradient_checkpointing=false",
    "trainer.enable_ray_gpu_monitor=false",
    f"trainer.policy.fsdp_config.mixed_precision={_FLOAT}",
    f"trainer.critic.fsdp_config.mixed_precision={_FLOAT}",
    f"trainer.ref.fsdp_config.mixed_precision={_FLOAT}",
    "generator.inference_engine.enable_ray_prometheus_stats=false",
    "trainer.logger=console",
]
"""SkyRL's settings without flash-attn, CUDA and services."""


def mock_cuda() -> None:
    """Replace CUDA by the CPU in this process."""
    cuda, distributed = torch.cuda, torch.distributed
    cuda.current_device = lambda: torch.device("cpu")
    cuda.device_count = lambda: 1
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    mesh, start = distributed.device_mesh.init_device_mesh, distributed.init_process_group
    empty = torch.empty

    def cpu_empty(*args: Any, **kwargs: Any) -> torch.Tensor:
        return empty(*args, **{k: "cpu" if v == "cuda" else v for k, v in kwargs.items()})

    def cpu_mesh(device: str, *args: Any, **kwargs: Any) -> Any:
        return mesh("cpu", *args, **kwargs)

    from skyrl.backends.skyrl_train.distributed import fsdp_utils

    distributed.device_mesh.init_device_mesh = fsdp_utils.init_device_mesh = cpu_mesh
    torch.empty = cpu_empty  # the second process receives buffers of the first in CUDA memory
    distributed.init_process_group = lambda backend, **kwargs: start(backend="gloo", **kwargs)


class _CpuWorker:
    """Mixin of a worker whose process uses the CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch.set_num_threads(1)
        mock_cuda()
        super().__init__(*args, **kwargs)


class _Policy(_CpuWorker, fsdp_worker.FSDPPolicyWorkerBase):  # type: ignore[misc]
    """Policy worker that writes its weights to the file of a `FileEngine`."""

    async def init_weight_sync_state(self, client: Any, config: Any) -> None:
        self.file = client.weights  # SkyRL 0.4 passes the client only here

    async def broadcast_to_inference_engines(self, client: Any, config: Any, **_: Any) -> None:
        if self._is_lora:  # SkyRL writes the adapter to a folder and passes it to the client
            await super().broadcast_to_inference_engines(client, config)
            return
        shards = self.model.model.state_dict()
        weights = {
            name: shard.full_tensor() if hasattr(shard, "full_tensor") else shard
            for name, shard in shards.items()
        }
        if torch.distributed.get_rank() == 0:
            torch.save(weights, self.file)
        torch.distributed.barrier()


class _Critic(_CpuWorker, fsdp_worker.FSDPCriticWorkerBase):  # type: ignore[misc]
    """Critic worker on the CPU."""


class _Ref(_CpuWorker, fsdp_worker.FSDPRefWorkerBase):  # type: ignore[misc]
    """Reference worker on the CPU."""


class FileEngine(InferenceEngineInterface):  # type: ignore[misc]
    """Inference engine that generates in this process and reads new weights from a file."""

    model_name = "tiny"

    def __init__(self, path: str, seed: int = 0) -> None:
        self.path, self.weights = path, tempfile.mkstemp(suffix=".pt")[1]
        self.weight_version = 0
        model, tokenizer = load_folder(path, "the model")
        self.policy: Any = TransformersPolicy(model, tokenizer, seed=seed)
        self.running: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "policy": None, "running": None}  # workers need only the file

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        (prompt,), params = input_batch["prompt_token_ids"], input_batch["sampling_params"]
        if self.running is not None:
            await self.running.wait()
        for token in params.get("stop_token_ids") or ():
            self.policy.stop_at(token)
        generation = await self.policy.generate(
            prompt, Sampling(temperature=params["temperature"], max_tokens=params["max_tokens"])
        )
        return {
            "responses": [""],
            "response_ids": [list(generation.ids)],
            "stop_reasons": [generation.finish.value],
            "response_logprobs": [list(generation.logprobs or ())],
        }

    async def update_named_weights(self, request: Any) -> None:
        """Take the folder of a LoRA adapter. A policy worker calls it."""
        torch.save(request.lora_path, self.weights)

    def increment_weight_version(self) -> None:
        weights = torch.load(self.weights)
        if isinstance(weights, str):
            base, _ = load_folder(self.path, "the model")
            self.policy.model = PeftModel.from_pretrained(base, weights).eval()
        else:
            self.policy.model.load_state_dict(weights)
        self.weight_version += 1

    async def pause_generation(self) -> None:
        self.running = asyncio.Event()

    async def resume_generation(self) -> None:
        self.running.set()

    async def finish_session(self, session_id: str) -> None:
        pass

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        pass

    wake_up = reset_prefix_cache = sleep

    def get_endpoint_url(self) -> str:
        raise NotImplementedError

    async def chat_completion(self, request_payload: Any) -> Any:
        raise NotImplementedError

    completion = render_chat_completion = chat_completion
    init_weight_update_communicator = load_lora_adapter = chat_completion
    teardown = get_world_size = chat_completion


class CpuExp(GemExp):
    """gem's experiment with workers and an engine on the CPU."""

    def __init__(self, *args: Any) -> None:
        # this process has not run the fixture of the tests
        register(ECHO, "worlds:Echo", replace=True)
        register(MOODY, "worlds:Moody", replace=True)
        super().__init__(*args)

    def get_inference_client(self) -> FileEngine:
        torch.set_num_threads(1)
        return FileEngine(self.cfg.trainer.policy.model.path, self.cfg.trainer.seed)

    def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
        trainer = super().get_trainer(*args, **kwargs)
        build, workers = trainer.build_models, (_Policy, _Critic, _Ref)
        trainer.build_models = lambda *_: build(*(ray.remote(num_gpus=1)(w) for w in workers))
        return trainer


def start_mock_gpus() -> None:
    """Start Ray with GPUs that do not exist."""
    start_ray(
        num_cpus=16,
        num_gpus=GPUS,
        log_to_driver=bool(os.environ.get("SHOW_WORKERS")),
        logging_level="ERROR",
        object_store_memory=256 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}},
    )


def main() -> None:
    """Run the program that the arguments name."""
    start_mock_gpus()
    run = trainer.train

    def train_on_cpu(config: Any, settings: Any) -> None:
        run(config, [*settings, *SETTINGS], CpuExp)

    trainer.train = train_on_cpu
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    import skyrl_on_cpu  # Ray's workers find its classes by this name

    skyrl_on_cpu.main()
