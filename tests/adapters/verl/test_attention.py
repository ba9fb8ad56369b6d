"""`torch_varlen` computes what transformers' `sdpa` computes, without a mask of tokens x tokens."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import wraps
from inspect import Parameter, Signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny_qwen2 import tiny_qwen2
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gem_core.errors import ConfigError
from gem_core.policies.tiny import load_tiny, tiny_model_path
from gem_verl import GemConfig, attention
from gem_verl.config import check_settings, hydra_config, read_config

IMPLEMENTATION = "actor_rollout_ref.model.override_config.attn_implementation"
LENGTHS = [5, 1, 17, 1, 30, 8]
TOTAL = sum(LENGTHS)
MODELS: dict[str, Callable[[], Any]] = {"Llama": lambda: load_tiny()[0], "Qwen2": tiny_qwen2}
"""Qwen2 has fewer key heads than query heads."""


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    attention.register_attention()


@pytest.fixture(params=MODELS)
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    model = MODELS[request.param]()
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.5  # some models have a scale of their own
    return with_both(model)


def with_both(model: Any) -> tuple[Any, Any]:
    """Return the model with `sdpa`, and a copy with `torch_varlen`."""
    other = deepcopy(model)
    model.set_attn_implementation("sdpa")
    other.set_attn_implementation(attention.NAME)
    return model, other


def packed(lengths: list[int] = LENGTHS) -> dict[str, Any]:
    """Return the inputs of a forward pass on random sequences in one row, as verl makes them."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return {
        "input_ids": torch.randint(3, 600, (1, len(positions)), generator=generator),
        "position_ids": positions[None],
        "attention_mask": None,
        "use_cache": False,
    }


def gradient(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the gradient of a weighted sum of the logprobs of all tokens."""
    logprobs = model(**inputs).logits.log_softmax(-1)
    ids = inputs["input_ids"][..., None]
    weights = torch.linspace(-1, 1, ids.numel()).view(ids.shape)
    (logprobs.gather(-1, ids) * weights).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def assert_same(models: tuple[Any, Any], inputs: dict[str, Any]) -> None:
    """Compare logits and gradient in float32."""
    kept = inputs["attention_mask"]
    rows = slice(None) if kept is None else kept.bool()
    expected, logits = (model(**inputs).logits[rows] for model in models)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    reference, own = (gradient(model, inputs) for model in models)
    assert reference.norm() > 1
    assert (own - reference).norm() <= 1e-5 * reference.norm()


def attend(q: Any, k: Any, v: Any, bounds: Any, longest: int, causal: bool, scale: Any) -> Any:
    """Compute what the kernel computes, from the definition of attention."""
    assert bounds.dtype == torch.int32 and causal
    assert longest == int(bounds.diff().max())
    assert len(q) == len(k) == len(v) == int(bounds[-1])
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    parts = []
    for start, end in pairwise(bounds.tolist()):
        scores = torch.einsum("qhd,khd->hqk", q[start:end], k[start:end])
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
        future = torch.ones(end - start, end - start).triu(1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, v[start:end]))
    return torch.cat(parts)


def kernel_with(*options: str) -> Any:
    """Return a mock of torch's kernel, which needs a GPU, with these options."""
    names = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", *options)

    def kernel(query: Any, key: Any, value: Any, *bounds: Any, **given: Any) -> Any:
        assert set(given) <= set(options)
        assert given.get("enable_gqa") or query.shape == key.shape
        causal = given.get("is_causal", False) or given.get("window_size") == (-1, 0)
        return attend(query, key, value, bounds[0], bounds[2], causal, given.get("scale"))

    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    kernel.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return kernel


KERNELS = {
    "no kernel": None,
    "torch 2.10": kernel_with("is_causal"),
    "no scale": kernel_with("window_size"),
    "torch 2.11": kernel_with("window_size", "scale"),
    "torch 2.13": kernel_with("window_size", "scale", "enable_gqa"),
}


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mock torch's kernel with the options of each version of torch."""
    if mock := KERNELS[request.param]:
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", mock)
        monkeypatch.setattr(attention, "_on_gpu", lambda value: True)


def test_packed_sequences_have_the_logits_and_gradient_of_sdpa(
    models: tuple[Any, Any], kernel: None
) -> None:
    assert_same(models, packed())


def test_sequences_do_not_see_each_other(models: tuple[Any, Any], kernel: None) -> None:
    """Each sequence of a row has the logits that it has alone."""
    inputs = packed()
    _, model = models
    with torch.no_grad():
        logits = model(**inputs).logits[0].split(LENGTHS)
        for ids, own in zip(inputs["input_ids"][0].split(LENGTHS), logits):
            alone = model(input_ids=ids[None], use_cache=False).logits[0]
            assert torch.allclose(own, alone, atol=1e-4)


def test_sequence_depends_on_all_its_own_earlier_tokens(models: tuple[Any, Any]) -> None:
    inputs = packed([4, 6])
    _, model = models
    with torch.no_grad():
        before = model(**inputs).logits[0]
        inputs["input_ids"][0, 5] += 1  # the second token of the second sequence
        changed = (model(**inputs).logits[0] != before).any(-1)
    assert changed.tolist() == [False] * 5 + [True] * 5


def test_rows_without_a_mask_are_separate(models: tuple[Any, Any], kernel: None) -> None:
    row = packed([7, 9])
    inputs = {**row, "input_ids": torch.cat([row["input_ids"], row["input_ids"].flip(1)])}
    assert_same(models, inputs)  # both rows share one row of positions


@pytest.fixture
def no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**kwargs: Any) -> None:
        raise AssertionError("a mask was computed")

    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS, "sdpa", fails)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_forward_pass_computes_the_bounds_once_and_no_mask(
    checkpointing: bool, no_masks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradient checkpointing computes the layers twice. Each copy to the host waits for the GPU."""
    made: list[list[int]] = []

    class Counted(attention._Bounds):
        def __init__(self, position_ids: torch.Tensor) -> None:
            super().__init__(position_ids)
            made.append(self.list)

    monkeypatch.setattr(attention, "_Bounds", Counted)
    _, model = with_both(load_tiny()[0].train())
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for lengths in ([3, 4], [4, 3]):
        gradient(model, packed(lengths))
    assert made == [[0, 3, 7], [0, 4, 7]]
    assert len(attention._known_bounds) == 0


def test_bounds_follow_the_content_of_the_positions_and_the_batch() -> None:
    positions = torch.arange(6)[None]
    assert attention._bounds_of(positions, 1).list == [0, 6]
    assert attention._bounds_of(positions, 2).list == [0, 6, 12]
    positions[0, 3:] -= 3
    assert attention._bounds_of(positions, 2).list == [0, 3, 6, 9, 12]


def test_inference_mode_has_the_logits_of_sdpa(models: tuple[Any, Any]) -> None:
    """Its tensors have no version."""
    with torch.inference_mode():
        inputs = packed()
        expected, logits = (model(**inputs).logits for model in models)
    assert torch.allclose(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_padded_sequences_have_the_logits_and_gradient_of_sdpa(
    models: tuple[Any, Any], padding: str
) -> None:
    """verl pads on the right without `use_remove_padding`."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(3, 9, dtype=torch.long)
    positions = torch.arange(9).remainder(5).expand(3, 9)  # not packed: there is a mask
    if padding != "none":
        for row, padded in enumerate((4, 0, 7)):
            mask[row, slice(9 - padded, None) if padding == "right" else slice(padded)] = 0
        positions = (mask.cumsum(-1) - 1).clamp(min=0) * mask
    inputs = {
        "input_ids": torch.randint(3, 600, (3, 9), generator=generator),
        "attention_mask": mask,
        "position_ids": positions,
        "use_cache": False,
    }
    assert_same(models, inputs)


def test_generation_with_a_cache_has_the_tokens_of_sdpa(models: tuple[Any, Any]) -> None:
    inputs = {"input_ids": packed()["input_ids"][:, :18].view(2, 9)}
    expected, own = (
        model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        for model in models
    )
    assert torch.equal(own, expected)
    for end in (11, 14):  # one token after the cached ones, or four
        with torch.no_grad():
            caches = [model(own[:, :10], use_cache=True).past_key_values for model in models]
            expected, logits = (
                model(own[:, 10:end], past_key_values=cache).logits
                for model, cache in zip(models, caches)
            )
        assert torch.allclose(logits, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("window", [4, 100])
def test_sliding_window_has_the_logits_and_gradient_of_sdpa(window: int) -> None:
    layers = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    models = with_both(tiny_qwen2(**layers))
    assert set(models[0].config.layer_types) == {"full_attention", "sliding_attention"}
    for lengths in (LENGTHS, [TOTAL]):
        assert_same(models, packed(lengths))


def test_autocast_computes_attention_in_the_lower_precision(monkeypatch: Any) -> None:
    """The rotation of queries and keys returns float32, which the kernel would reject."""
    dtypes: list[torch.dtype] = []

    def kernel(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        dtypes.extend(tensor.dtype for tensor in (query, key, value))
        return newest(query, key, value, *args, **kwargs)

    newest = KERNELS["torch 2.13"]
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", wraps(newest)(kernel))
    monkeypatch.setattr(attention, "_on_gpu", lambda value: True)
    models = with_both(load_tiny()[0])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, logits = (model(**packed()).logits.float() for model in models)
    assert set(dtypes) == {torch.bfloat16}
    assert (logits - expected).norm() <= 0.02 * expected.norm()


def test_attention_rejects_what_the_kernel_does_not_compute() -> None:
    model = load_tiny()[0]
    layer = model.model.layers[0].self_attn
    qkv = [torch.randn(1, 2, 4, 32) for _ in range(3)]
    attend = ALL_ATTENTION_FUNCTIONS[attention.NAME]
    positions = torch.arange(4)[None]
    for arguments, message in (
        ({"dropout": 0.1}, "does not support attention_dropout; set attn_implementation=sdpa"),
        ({"softcap": 30.0}, "does not support softcap"),
        ({"position_ids": None}, "LlamaAttention does not pass to its attention; set"),
        ({"position_ids": positions[None]}, "LlamaAttention does not pass to its attention; set"),
    ):
        with pytest.raises(ConfigError, match=message):
            attend(layer, *qkv, None, **{"position_ids": positions, **arguments})


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mock torch 2.9, which has no kernel."""
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    monkeypatch.setattr(torch, "__version__", "2.9.1")


def settings_of(*settings: str) -> Any:
    own = [f"actor_rollout_ref.model.path={tiny_model_path()}", "data.train_batch_size=8"]
    config = GemConfig("game:GuessTheNumber-v0-easy", seeds=8)
    return hydra_config(config, [*own, f"+{IMPLEMENTATION}={attention.NAME}", *settings])


def test_old_torch_is_rejected_on_a_gpu(old_torch: None, monkeypatch: Any) -> None:
    message = "needs torch 2.10 or newer on a GPU; got 2.9.1. .*sdpa, or flash_attention_2"
    settings = settings_of()
    with pytest.raises(ConfigError, match=message):
        check_settings(settings, read_config(settings))
    for accepted in (
        settings_of("trainer.device=cpu"),
        settings_of(f"++{IMPLEMENTATION}=sdpa"),
    ):
        check_settings(accepted, read_config(accepted))
    monkeypatch.setattr(attention, "_on_gpu", lambda value: True)
    _, model = with_both(load_tiny()[0])
    with pytest.raises(ConfigError, match=message):
        model(**packed())


def built_by_verl(*settings: str) -> Any:
    """Return the model as verl's FSDP engine builds it, without the process group around it."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    composed = settings_of(*settings)
    OmegaConf.resolve(composed)
    engine = FSDPEngineWithLMHead.__new__(FSDPEngineWithLMHead)
    engine.model_config = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    engine.engine_config = omega_conf_to_dataclass(composed.actor_rollout_ref.actor.fsdp_config)
    engine.device_mesh, engine.use_remove_padding = None, True
    engine.ulysses_sequence_parallel_size = 1
    return engine._build_module()


def test_verls_fused_forward_pass_computes_the_logprobs_of_each_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = packed()
    labels = inputs["input_ids"].roll(-1, 1)
    with torch.no_grad():
        logits = load_tiny()[0](**inputs).logits[0]
    expected = logits.log_softmax(-1).gather(1, labels[0, :, None])[:, 0]
    # verl replaces the method of the class; this restores it after the test
    monkeypatch.setattr(LlamaForCausalLM, "forward", LlamaForCausalLM.forward)
    model = built_by_verl(
        "actor_rollout_ref.model.use_fused_kernels=True",
        "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch",
    )
    assert model.config._attn_implementation == attention.NAME
    output = model(**inputs, temperature=1.0, shift_labels=labels, return_dict=True)
    assert torch.allclose(output.log_probs.flatten(), expected, atol=1e-4)


def test_model_that_verl_saves_loads_without_gem(tmp_path: Path) -> None:
    model = built_by_verl()
    model(**packed())
    model.save_pretrained(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
