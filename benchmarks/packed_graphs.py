"""CUDA graphs of the layers of `packed.py`, forward and backward.

    graphs = LayerGraphs(layers, weights, most=16384)
    hidden = graphs(x, cos, sin, bounds, longest)

To start the kernels of 30 layers one by one takes the CPU longer than it takes the GPU to run them.
A graph starts them with one call. It has fixed sizes, so calls are padded to few sizes. A call
whose size has no graph uses a graph that is slightly larger, if there is one. Otherwise, the first
call of a size runs without a graph, and the second captures one. All graphs of a process share
their memory: the backward pass of a call must come before the next call of any of them.

On a CPU the same code runs without graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

__all__ = ["CALLS_BEFORE_CAPTURE", "LayerGraphs", "padded", "padded_size"]

TOKENS, SEQUENCES, LONGEST = 1024, 128, 256
"""Tokens and sequences are rounded up to multiples of the first two, and the longest length to the
third times a power of 2."""
MOST_PADDING = 1.25
"""A larger graph has at most this multiple of the tokens of a call."""
CALLS_BEFORE_CAPTURE = 20
"""Calls of a size that use a larger graph before the size gets its own; chosen by hand."""
Layers = Callable[..., torch.Tensor]
Size = tuple[int, int, int]
"""Tokens, sequences, and the longest length."""


def padded_size(lengths: Sequence[int]) -> Size:
    """Return the size of the smallest graph for sequences of these lengths."""
    longest = LONGEST
    while longest < max(lengths):
        longest *= 2
    tokens = _round_up(sum(lengths), TOKENS)
    padding = (tokens - sum(lengths)) // longest + 1
    return tokens, _round_up(len(lengths) + padding, SEQUENCES), longest


def padded(lengths: Sequence[int], size: Size) -> list[int]:
    """Return the lengths of all sequences of a graph of this size.

    The graph has the given sequences, sequences of padding, and empty ones. The result is too long
    if the padding needs more sequences than the graph has.
    """
    tokens, sequences, longest = size
    rest = tokens - sum(lengths)
    all_lengths = [*lengths, *[longest] * (rest // longest), rest % longest]
    return [*all_lengths, *[0] * (sequences - len(all_lengths))]


class LayerGraphs:
    """Graphs of the same layers, for different sizes."""

    def __init__(self, layers: Layers, weights: Sequence[torch.Tensor], most: int) -> None:
        """`layers(weights, x, cos, sin, bounds, longest)` returns a tensor of the shape of x.

        The weights may change in place only. `most` is the largest number of tokens of a call.
        """
        self.layers, self.weights = layers, weights
        # A backward pass in flight on another stream may use the nodes of the weights themselves.
        # The type is that of the weights, because torch.compile compiles again for another one.
        self.leaves = [torch.nn.Parameter(weight.detach()) for weight in weights]
        self.limit = _round_up(most, TOKENS)
        self.captured: dict[Size, _Captured] = {}
        self.seen: set[Size] = set()
        """Sizes that had a call without a graph."""
        self.padded_calls: Counter[Size] = Counter()
        """Calls that used a larger graph, by their own size."""
        self.buffers: dict[str, torch.Tensor] = {}
        """Inputs and outputs of all graphs; a smaller graph has the beginning of each."""
        self.flat = torch.empty(0)
        """The gradients of all weights; `gradients` are its parts."""
        self.gradients: list[torch.Tensor] = []

    def fits(self, tokens: int) -> bool:
        """Return whether a call may have this number of tokens."""
        return _round_up(tokens, TOKENS) <= self.limit

    def padded(self, lengths: Sequence[int]) -> tuple[list[int], int]:
        """Return the lengths with those of the padding, and the longest that the graph takes."""
        size = padded_size(lengths)
        if size not in self.captured and self.padded_calls[size] < CALLS_BEFORE_CAPTURE:
            larger = [graph for graph in self.captured if _serves(graph, size, lengths)]
            if larger:
                self.padded_calls[size] += 1
                size = min(larger)
        return padded(lengths, size), size[-1]

    def __call__(
        self, x_N_E: Any, cos: Any, sin: Any, bounds: torch.Tensor, longest: int
    ) -> torch.Tensor:
        """Return what `layers` returns; N, the bounds and `longest` come from `padded`."""
        size = (x_N_E.shape[0], len(bounds) - 1, longest)
        if size not in self.captured and size not in self.seen:
            self.seen.add(size)  # a capture takes longer than a call, and may not pay
            return self.layers(self.weights, x_N_E, cos, sin, bounds, longest)
        if any(w.data_ptr() != leaf.data_ptr() for w, leaf in zip(self.weights, self.leaves)):
            raise RuntimeError(
                "the weights were replaced; graphs need weights that change in place"
            )
        inputs = {"x": x_N_E.detach(), "cos": cos, "sin": sin, "bounds": bounds}
        if not self.buffers:
            self._allocate(inputs)
        if size not in self.captured:
            self.captured[size] = self._capture(size, inputs)
        captured = self.captured[size]
        hidden: torch.Tensor = _Replay.apply(self, captured, inputs, x_N_E, *self.weights)
        return hidden

    def _allocate(self, inputs: dict[str, torch.Tensor]) -> None:
        x = inputs["x"]
        shapes = {"x": x, "cos": inputs["cos"], "sin": inputs["sin"]}
        shapes |= dict.fromkeys(("hidden", "x gradient", "hidden gradient"), x)
        for name, like in shapes.items():
            self.buffers[name] = like.new_zeros(self.limit, *like.shape[1:])
        self.flat = x.new_zeros(sum(weight.numel() for weight in self.weights))
        self.gradients = self.views(self.flat)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a flat tensor in the shapes of the weights."""
        parts = flat.split([weight.numel() for weight in self.weights])
        return [part.view_as(weight) for part, weight in zip(parts, self.weights)]

    def _capture(self, size: Size, inputs: dict[str, Any]) -> _Captured:
        N, sequences, longest = size
        tensors = {name: buffer[:N] for name, buffer in self.buffers.items()}
        tensors["bounds"] = torch.zeros(sequences + 1, dtype=torch.int32, device=inputs["x"].device)
        captured = _Captured(tensors)
        captured.send(inputs)
        x = tensors["x"].detach().requires_grad_()

        def forward() -> None:
            with torch.enable_grad():
                rest = (tensors["cos"], tensors["sin"], tensors["bounds"], longest)
                captured.result = self.layers(self.leaves, x, *rest)
            tensors["hidden"].copy_(captured.result.detach())

        def backward() -> None:
            result, captured.result = captured.result, None
            gradient = tensors["hidden gradient"]
            results = torch.autograd.grad(result, (x, *self.leaves), gradient)
            tensors["x gradient"].copy_(results[0])
            torch._foreach_copy_(self.gradients, results[1:])

        captured.forward, captured.backward = forward, backward
        if x.is_cuda:
            stream = _stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # warm up: compilers and libraries initialise
                forward()
                backward()
            torch.cuda.synchronize()
            captured.forward = _graph(forward).replay
            captured.backward = _graph(backward).replay
        return captured


class _Captured:
    """A pair of graphs, with their inputs and outputs."""

    forward: Callable[[], None]
    backward: Callable[[], None]
    result: Any = None
    """The output of `layers`, between the forward and the backward pass."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def send(self, inputs: dict[str, torch.Tensor]) -> None:
        for name, value in inputs.items():
            self.tensors[name].copy_(value)


class _Replay(torch.autograd.Function):
    """Run a forward graph, and its backward graph in the backward pass."""

    calls = 0
    """Passes of all graphs of the process: a backward pass must follow its forward pass."""

    @staticmethod
    def forward(ctx: Any, graphs: LayerGraphs, captured: Any, inputs: Any, *_: Any) -> Any:
        _Replay.calls += 1
        ctx.graphs, ctx.captured, ctx.call = graphs, captured, _Replay.calls
        captured.send(inputs)
        captured.forward()
        return captured.tensors["hidden"].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.call != _Replay.calls:
            raise RuntimeError(
                "another pass has overwritten the memory of this forward pass; call backward once, "
                "and before the next forward pass"
            )
        tensors = ctx.captured.tensors
        tensors["hidden gradient"].copy_(gradients[0])
        ctx.captured.backward()
        _Replay.calls += 1  # the activations are overwritten
        of_weights = ctx.graphs.views(ctx.graphs.flat.clone())
        return None, None, None, tensors["x gradient"].clone(), *of_weights


def _serves(graph: Size, size: Size, lengths: Sequence[int]) -> bool:
    """Return whether a larger graph has room for a call of this size, and for its padding."""
    large_enough = all(theirs >= own for theirs, own in zip(graph, size))
    close_enough = graph[0] <= MOST_PADDING * size[0]
    return large_enough and close_enough and len(padded(lengths, graph)) <= graph[1]


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@cache
def _stream() -> Any:
    return torch.cuda.Stream()


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


def _graph(call: Callable[[], None]) -> Any:
    graph = torch.cuda.CUDAGraph()
    # other threads may use the GPU; those of the backward pass record into the same stream
    with torch.cuda.graph(graph, _pool(), _stream(), capture_error_mode="thread_local"):
        call()
    return graph
