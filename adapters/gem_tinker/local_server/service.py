"""Service: the requests of the Tinker API, without HTTP: sessions, models, samplers, futures."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from tinker.proto import tinker_public_pb2 as proto

from gem_core.adapter_kit.settings import model_context
from gem_core.policies.models import load_model, model_path
from gem_core.policies.transformers_policy import TransformersPolicy
from gem_core.types import Sampling
from gem_tinker.local_server.model import LOSSES, LoraModel, Sequences
from gem_tinker.local_server.wire import decode_data, encode_outputs, encode_samples

__all__ = ["ApiError", "Service"]

Json = dict[str, Any]
_KEPT_SAMPLERS = 4
"""Older samplers are dropped. Training needs the newest, or the newest two if one step off."""
_WAIT = 0.05
"""Seconds that a sampler waits for more requests, because they arrive one by one."""


class ApiError(Exception):
    """An error response: the HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class _Training:
    """A model in training. Its requests run in the order of their numbers (`seq_id`)."""

    name: str
    model: LoraModel
    next: int = 1
    waiting: dict[int, tuple[Callable[[], Any], Future[Any]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, number: int, job: Callable[[], Any], future: Future[Any]) -> None:
        """Add a request, and run every request whose turn has come."""
        with self.lock:
            self.waiting[number] = job, future
            while self.next in self.waiting:
                job, future = self.waiting.pop(self.next)
                self.next += 1
                try:
                    future.set_result(job())
                except Exception as error:  # noqa: BLE001 - the client gets it with the result
                    future.set_exception(error)


class Service:
    """The state of the server. Checkpoints are files in `folder`, so they outlive the server."""

    def __init__(
        self, model: str, folder: str | os.PathLike[str], *, inspected: bool = False
    ) -> None:
        """`model`: the base model to serve, by a name that `gem_core`'s `load_model` knows.

        `inspected`: keep what the conformance harness reads: the data of forward_backward requests,
        and the gradient of the base weights.
        """
        self.name, self.folder, self._inspected = model, Path(folder), inspected
        self._base, self._tokenizer = load_model(model)
        self.trainings: dict[str, _Training] = {}
        self.received: list[Sequences] = []
        """The data of the forward_backward requests, if `inspected`."""
        self._samplers: dict[str, TransformersPolicy] = {}
        self._futures: dict[str, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()  # the samplers batch requests on it
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def close(self) -> None:
        """End the samplers."""
        for sampler in self._samplers.values():
            sampler.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    # Requests with an immediate response.

    def get_server_capabilities(self, _: Json) -> Json:
        context = model_context(self._base.config)
        return {"supported_models": [{"model_name": self.name, "max_context_length": context}]}

    def create_session(self, _: Json) -> Json:
        return {"type": "create_session", "session_id": f"session-{uuid4().hex[:8]}"}

    def get_info(self, request: Json) -> Json:
        training = self._training(request)
        data = {"model_name": training.name, "tokenizer_id": model_path(training.name)}
        return {
            "model_id": request["model_id"],
            "model_data": data,
            "is_lora": True,
            "lora_rank": training.model.config["rank"],
        }

    def weights_info(self, request: Json) -> Json:
        state = self._read(request["tinker_path"])
        config = state["config"]
        flags = {name: config[name] for name in ("train_attn", "train_mlp", "train_unembed")}
        return {
            "base_model": state["base_model"],
            "is_lora": True,
            "lora_rank": config["rank"],
            **flags,
        }

    def create_sampling_session(self, request: Json) -> Json:
        if request.get("model_path") is None:
            model = self._new_model(request["base_model"], {"rank": 1}).merged()
        else:
            state = self._read(request["model_path"])
            trained = self._new_model(state["base_model"], state["config"])
            trained.load(state, optimizer=False)
            model = trained.merged()
        return {"type": "create_sampling_session", "sampling_session_id": self._add_sampler(model)}

    # Requests whose result the client retrieves later.

    def create_model(self, request: Json) -> Json:
        name, config = request["base_model"], request["lora_config"]
        model_id = f"{request['session_id']}:train:{request['model_seq_id']}"
        self.trainings[model_id] = _Training(name, self._new_model(name, config))
        return self._done({"type": "create_model", "model_id": model_id})

    def forward_backward(self, body: bytes) -> Json:
        request = proto.ForwardBackwardRequest.FromString(body)
        loss, config = request.loss_fn, dict(request.loss_fn_config)
        training = self._training({"model_id": request.model_id})

        def work() -> bytes:
            if loss not in LOSSES:
                raise ValueError(f"this server has the losses {LOSSES}, not {loss!r}")
            data = decode_data(request)
            if self._inspected:
                self.received.append(data)
            logprobs, total = training.model.forward_backward(
                data, loss, config, backward=not request.forward_only
            )
            return encode_outputs(logprobs, total)

        return self._enqueue(training, request.seq_id, work)

    def optim_step(self, request: Json) -> Json:
        training = self._training(request)
        return self._enqueue(
            training,
            request["seq_id"],
            lambda: {"metrics": training.model.optim_step(request["adam_params"])},
        )

    def save_weights(self, request: Json) -> Json:
        return self._save(request, "weights")

    def save_weights_for_sampler(self, request: Json) -> Json:
        if request.get("path") is not None:
            return self._save(request, "sampler_weights")
        training = self._training(request)
        return self._enqueue(
            training,
            request["seq_id"],
            lambda: {"sampling_session_id": self._add_sampler(training.model.merged())},
        )

    def load_weights(self, request: Json) -> Json:
        training = self._training(request)

        def work() -> Json:
            state = self._read(request["path"])
            training.model.load(state, optimizer=request["optimizer"])
            return {"path": request["path"]}

        return self._enqueue(training, request["seq_id"], work)

    def asample(self, request: Json) -> Json:
        sampler = self._samplers.get(request["sampling_session_id"])
        if sampler is None:
            raise ApiError(404, f"there is no sampler {request['sampling_session_id']}")
        params, count = request["sampling_params"], request["num_samples"]
        stop = params.get("stop") or []
        stop = [stop] if isinstance(stop, str) else stop
        if stop and isinstance(stop[0], int):
            sampler.stop_ids, stop = frozenset(stop), []
        sampling = Sampling(
            max_tokens=params["max_tokens"],
            temperature=params["temperature"],
            seed=params.get("seed"),
            top_p=params["top_p"],
            top_k=max(params["top_k"], 0),
            stop=tuple(stop),
        )
        prompt = [token for chunk in request["prompt"]["chunks"] for token in chunk["tokens"]]

        async def generate() -> bytes:
            return encode_samples(
                await asyncio.gather(*(sampler.generate(prompt, sampling) for _ in range(count)))
            )

        answer = self._add(asyncio.run_coroutine_threadsafe(generate(), self._loop))
        ids = [f"{answer['request_id']}-{i}" for i in range(count)]
        return {**answer, "sample_sequence_ids": ids}

    def retrieve_future(self, request: Json, seconds: float = 20.0) -> Json | bytes:
        """Return the result of a request, which is an error if the request failed."""
        future = self._futures.get(request["request_id"])
        if future is None:
            raise ApiError(404, f"there is no request {request['request_id']}")
        try:
            result: Json | bytes = future.result(seconds)
        except TimeoutError:
            if future.done():
                raise
            raise ApiError(408, "the request is still running") from None
        except Exception as error:  # noqa: BLE001 - the client raises it
            result = {"error": f"{type(error).__name__}: {error}", "category": "server"}
        return result

    # Parts.

    def _training(self, request: Json) -> _Training:
        training = self.trainings.get(request["model_id"])
        if training is None:
            raise ApiError(404, f"there is no model {request['model_id']}")
        return training

    def _new_model(self, name: str, config: Mapping[str, Any]) -> LoraModel:
        if name != self.name:
            raise ApiError(400, f"this server has the model {self.name!r}, not {name!r}")
        flags = {"train_attn": True, "train_mlp": True, "train_unembed": True}
        base = load_model(name)[0].train()
        return LoraModel(base, {**flags, **config}, full_gradient=self._inspected)

    def _add_sampler(self, model: Any) -> str:
        session = f"sampler-{next(self._numbers)}"
        self._samplers[session] = TransformersPolicy(
            model, self._tokenizer, max_batch=None, max_wait=_WAIT
        )
        for old in list(self._samplers)[:-_KEPT_SAMPLERS]:
            del self._samplers[old]
        return session

    def _save(self, request: Json, kind: str) -> Json:
        training = self._training(request)

        def work() -> Json:
            where = f"{request['model_id'].replace(':', '-')}/{kind}/{request['path']}"
            path = self.folder / f"{where}.pt"
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({**training.model.state(), "base_model": training.name}, path)
            return {"path": f"tinker://{where}"}

        return self._enqueue(training, request["seq_id"], work)

    def _read(self, tinker_path: str) -> Json:
        path = self.folder / f"{tinker_path.removeprefix('tinker://')}.pt"
        if not path.is_file():
            raise ApiError(404, f"there is no checkpoint {tinker_path}")
        state: Json = torch.load(path)
        return state

    def _enqueue(self, training: _Training, number: int, work: Callable[[], Any]) -> Json:
        future: Future[Any] = Future()
        threading.Thread(target=training.run, args=(number, work, future), daemon=True).start()
        return self._add(future)

    def _done(self, result: Json) -> Json:
        future: Future[Any] = Future()
        future.set_result(result)
        return self._add(future)

    def _add(self, future: Future[Any]) -> Json:
        request_id = f"request-{next(self._numbers)}"
        self._futures[request_id] = future
        return {"request_id": request_id}
