"""A server with the part of SGLang's HTTP interface that RL2 and its router call, over a real model on the CPU.

    python sglang_server.py --port 30000 --model path/of/a/model

As SGLang's, it answers `/generate` with ids and logprobs; `pause_generation` aborts what is being generated, and requests that
come meanwhile wait for `continue_generation`; weights are renewed by `update_weights_from_tensor`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).parent / "mocks")
)  # the class the release's weights are pickled as

import torch
from aiohttp import web

from gem_core.policies.tiny import load_folder
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import FinishReason, Sampling

PIECE = 8
"""Tokens between two looks at whether generation was paused."""


class Server:
    """One model, and whether it may generate."""

    def __init__(self, model_path: str, seed: int | None) -> None:
        self.model, self.tokenizer = load_folder(model_path, "the served model")
        self.policy = TransformersPolicy(self.model, self.tokenizer, max_wait=0.005, seed=seed)
        self.info = {"model_path": model_path, "is_generation": True, "tp_size": 1, "dp_size": 1}
        self.calls: Counter[str] = Counter()
        self.going = asyncio.Event()
        self.going.set()
        self.pauses = 0

    async def generate(self, request: web.Request) -> web.Response:
        asked = await request.json()
        params: dict[str, Any] = asked["sampling_params"]
        self.calls["generate"] += 1
        await self.going.wait()
        pauses, ids, logprobs = self.pauses, [], []
        finish: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        while len(ids) < params["max_new_tokens"]:
            sampling = Sampling(
                temperature=params.get("temperature", 1.0),
                max_tokens=min(PIECE, params["max_new_tokens"] - len(ids)),
                seed=None
                if params.get("sampling_seed") is None
                else params["sampling_seed"] + len(ids),
            )
            piece = await self.policy.generate([*asked["input_ids"], *ids], sampling)
            ids += piece.ids
            logprobs += piece.logprobs or ()
            if piece.finish is FinishReason.STOP:
                finish = {"type": "stop", "matched": ids[-1]}
                break
            if self.pauses != pauses:
                finish = {"type": "abort", "message": "generation was paused"}
                break
        meta = {
            "finish_reason": finish,
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": len(ids),
        }
        meta["output_token_logprobs"] = [[p, i, None] for p, i in zip(logprobs, ids)]
        return web.json_response(
            {"text": self.tokenizer.decode(ids, skip_special_tokens=True), "meta_info": meta}
        )

    async def update(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.calls["update_weights_from_tensor"] += 1
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        given = pickle.loads(base64.b64decode(asked["serialized_named_tensors"][0]))
        with torch.no_grad():
            if isinstance(given, dict):
                flat, at = given["flattened_tensor"], 0
                for name, shape in given["metadata"]:
                    size = torch.Size(shape).numel()
                    parameters[name].copy_(flat[at : at + size].view(shape))
                    at += size
            else:
                for name, tensor in given:
                    parameters[name].copy_(pickle.loads(tensor.values[0]))
        return web.json_response({"success": True})

    async def other(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.calls[name] += 1
        if name == "pause_generation":
            self.going.clear()
            self.pauses += 1
        if name == "continue_generation":
            self.going.set()
        return web.json_response(self.info)

    async def called(self, request: web.Request) -> web.Response:
        return web.json_response(self.calls)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)

    async def app() -> web.Application:
        server = Server(args.model, args.seed)
        made = web.Application(client_max_size=1 << 30)
        made.add_routes(
            [
                web.post("/generate", server.generate),
                web.post("/update_weights_from_tensor", server.update),
                web.get("/calls", server.called),
                web.get("/{name}", server.other),
                web.post("/{name}", server.other),
            ]
        )
        return made

    web.run_app(app(), host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
