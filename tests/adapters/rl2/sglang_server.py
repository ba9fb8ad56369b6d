"""Mock of SGLang's HTTP server with the endpoints that RL2 and its router call, on the CPU.

    python sglang_server.py --port 30000 --model path/of/a/model

`/generate` returns ids and logprobs. `pause_generation` aborts running generations and holds new
ones until `continue_generation`. `update_weights_from_tensor` replaces the weights.
"""

from __future__ import annotations

import asyncio
import base64
import pickle
import sys
from pathlib import Path
from typing import Any

# the release's weights are pickled as a class of the mocks
sys.path.insert(0, str(Path(__file__).parent / "mocks"))

import torch
from aiohttp import web
from sglang_endpoints import Endpoints, argument_parser

from gem_core.policies.tiny import load_folder
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import FinishReason, Sampling

CHUNK = 8
"""The number of tokens after which the server checks for a pause."""


class Server(Endpoints):
    """The endpoints over one model."""

    def __init__(self, model_path: str, seed: int | None) -> None:
        super().__init__(model_path)
        self.model, self.tokenizer = load_folder(model_path, "the served model")
        self.policy = TransformersPolicy(self.model, self.tokenizer, max_wait=0.005, seed=seed)
        self.last_request: dict[str, Any] = {}
        """The body of the last call of `/generate`."""
        self.running = asyncio.Event()
        self.running.set()
        self.pauses = 0

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.last_request = body
        params: dict[str, Any] = body["sampling_params"]
        seed = params.get("sampling_seed")
        self.calls["generate"] += 1
        await self.running.wait()
        pauses, ids, logprobs = self.pauses, [], []
        finish: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        while len(ids) < params["max_new_tokens"]:
            sampling = Sampling(
                temperature=params.get("temperature", 1.0),
                max_tokens=min(CHUNK, params["max_new_tokens"] - len(ids)),
                seed=None if seed is None else seed + len(ids),
            )
            chunk = await self.policy.generate([*body["input_ids"], *ids], sampling)
            ids += chunk.ids
            logprobs += chunk.logprobs or ()
            if chunk.finish is FinishReason.STOP:
                finish = {"type": "stop", "matched": ids[-1]}
                break
            if self.pauses != pauses:
                finish = {"type": "abort", "message": "generation was paused"}
                break
        meta = {
            "finish_reason": finish,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
        }
        meta["output_token_logprobs"] = [[p, i, None] for p, i in zip(logprobs, ids)]
        return web.json_response(
            {"text": self.tokenizer.decode(ids, skip_special_tokens=True), "meta_info": meta}
        )

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls["update_weights_from_tensor"] += 1
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        weights = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
        with torch.no_grad():
            if isinstance(weights, dict):  # the main branch: many tensors in one
                flat, offset = weights["flattened_tensor"], 0
                for name, shape in weights["metadata"]:
                    size = torch.Size(shape).numel()
                    parameters[name].copy_(flat[offset : offset + size].view(shape))
                    offset += size
            else:  # the release: one tensor at a time
                for name, tensor in weights:
                    parameters[name].copy_(pickle.loads(tensor.values[0]))
        return web.json_response({"success": True})

    async def other(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name == "pause_generation":
            self.running.clear()
            self.pauses += 1
        if name == "continue_generation":
            self.running.set()
        return await super().other(request)

    async def show_last_request(self, request: web.Request) -> web.Response:
        return web.json_response(self.last_request)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--settings", help="SGLang's other settings, which are not used")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)

    async def app() -> web.Application:
        return Server(args.model, args.seed).application()

    web.run_app(app(), host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
