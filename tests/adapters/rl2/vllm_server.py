"""Server that speaks SGLang's HTTP protocol to RL2 and its router, and generates with vLLM.

    python vllm_server.py --port 30000 --model path/of/a/model --settings '{"dtype": "bfloat16"}'

RL2 sends one tensor of the weights per request; vLLM loads all of them after the last. vLLM keeps
its GPU memory while RL2 trains: `release_memory_occupation` does nothing.

The environment variable VLLM_SERVER_ARGS has further settings of vLLM's engine, as JSON.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import secrets
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from sglang_endpoints import Endpoints, argument_parser
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

RENAMED = {
    "max_new_tokens": "max_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
}
"""SGLang's names of sampling parameters, and vLLM's. All others are the same."""


class WeightReceiver:
    """The part of the server in vLLM's worker process."""

    def receive_weights(self, named: list[tuple[str, bytes]]) -> None:
        """Load pickled tensors; one of the GPU is a handle of RL2's own memory."""
        worker: Any = self
        weights = ((name, pickle.loads(data)) for name, data in named)
        if worker.device.type == "cpu":  # its layers keep their weights in another layout
            worker.reload_weights(weights_iterator=weights)
        else:
            worker.model_runner.model.load_weights(weights)


class NamedTensors(pickle.Unpickler):
    """Unpickler of RL2's weights without the package `sglang`."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "LocalSerializedTensor":
            return SimpleNamespace
        return super().find_class(module, name)


def sampling_params(params: dict[str, Any]) -> SamplingParams:
    """Return vLLM's sampling parameters for SGLang's."""
    given = {RENAMED.get(name, name): value for name, value in params.items() if value is not None}
    # 0 further logprobs: only that of the sampled token
    return SamplingParams(**given, logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)


def response_of(output: Any) -> dict[str, Any]:
    """Return SGLang's response for vLLM's output of one prompt."""
    sampled = output.outputs[0]
    finish = {"type": sampled.finish_reason}
    if sampled.finish_reason == "stop":
        finish["matched"] = sampled.stop_reason
    return {
        "text": sampled.text,
        "meta_info": {
            "finish_reason": finish,
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(sampled.token_ids),
            "output_token_logprobs": [
                [logprobs[id].logprob, id, None]
                for id, logprobs in zip(sampled.token_ids, sampled.logprobs)
            ],
        },
    }


class Server(Endpoints):
    """The endpoints over one engine."""

    def __init__(self, model_path: str, settings: dict[str, Any]) -> None:
        super().__init__(model_path)
        arguments = {
            "model": model_path,
            "dtype": settings.get("dtype", "auto"),
            "tensor_parallel_size": settings.get("tp_size", 1),
            "gpu_memory_utilization": settings.get("mem_fraction_static", 0.6),
            "max_model_len": settings.get("context_length"),
            "trust_remote_code": True,
            "logprobs_mode": "processed_logprobs",  # after the temperature, as SGLang's
            "disable_log_stats": True,
            "seed": secrets.randbits(31),  # as SGLang; vLLM's own default is 0
            "worker_extension_cls": "vllm_server.WeightReceiver",
            **json.loads(os.environ.get("VLLM_SERVER_ARGS", "{}")),
        }
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self.weights: list[tuple[str, bytes]] = []

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls["generate"] += 1
        try:
            params = sampling_params(body["sampling_params"])
            prompt: Any = {"prompt_token_ids": body["input_ids"]}
            async for output in self.engine.generate(prompt, params, uuid.uuid4().hex):
                final = output
        except (TypeError, ValueError) as error:  # a bad parameter, or a prompt that is too long
            finish = {"type": "abort", "message": str(error), "status_code": 400}
            return web.json_response({"text": "", "meta_info": {"finish_reason": finish}})
        return web.json_response(response_of(final))

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls["update_weights_from_tensor"] += 1
        data = base64.b64decode(body["serialized_named_tensors"][0])
        self.weights += [(n, t.values[0]) for n, t in NamedTensors(io.BytesIO(data)).load()]
        if body.get("flush_cache"):  # RL2's last request of an update
            weights, self.weights = self.weights, []
            await self.engine.collective_rpc("receive_weights", args=(weights,))
            await self.engine.reset_prefix_cache()
        return web.json_response({"success": True})

    async def close(self, application: web.Application) -> None:
        self.engine.shutdown()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--settings", type=json.loads, default={}, help="SGLang's, as JSON")
    args = parser.parse_args()
    # vLLM's worker process imports this file as a module
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, paths[0])

    async def app() -> web.Application:
        server = Server(args.model, args.settings)
        application = server.application()
        application.on_cleanup.append(server.close)
        return application

    # RL2's router keeps its connections open
    web.run_app(app(), host=args.host, port=args.port, print=None, shutdown_timeout=1.0)
    os._exit(0)  # threads of vLLM would delay the exit


if __name__ == "__main__":
    main()
