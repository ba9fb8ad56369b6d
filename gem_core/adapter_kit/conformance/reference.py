"""Reference: the canonical loss in plain torch, and its gradients on the tiny model, committed beside this file.

L = −(1/Z) Σ_rows Σ_tokens A_token · log π(token | what stands before it), Z the number of trained tokens of the update.
`python -m gem_core.adapter_kit.conformance.reference` writes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_core.adapter_kit.conformance.golden import GRADIENT_CASES, Case
from gem_core.errors import MissingDependencyError
from gem_core.training.advantage import advantages
from gem_core.training.sequences import token_sequences

__all__ = ["compute_reference", "distance", "load_reference", "reference_path", "tiny_model"]


def reference_path(case: Case) -> Path:
    """Where the gradient of a case is committed."""
    return Path(__file__).with_name(f"reference_{case.name.replace(' ', '_')}.safetensors")


def tiny_model() -> Any:
    """The tiny model that ships with gem, in float32, ready for a gradient."""
    try:
        from gem_core.policies.tiny import load_tiny
    except ImportError as error:
        raise MissingDependencyError(
            "the reference gradient", "transformers", str(error)
        ) from error
    model, _ = load_tiny()
    return model.float().train()


def compute_reference(case: Case, model: Any = None) -> dict[str, Any]:
    """The gradient of the canonical loss, one row at a time, so that nothing depends on padding."""
    import torch

    model = tiny_model() if model is None else model
    model.zero_grad(set_to_none=True)
    per_turn = advantages(case.episodes, case.estimator, gamma=case.gamma, **case.arguments)
    rows = [
        (view, view.broadcast(a))
        for e, a in zip(case.episodes, per_turn)
        for view in token_sequences(e)
    ]
    trained = sum(sum(view.mask) for view, _ in rows)
    for view, tokens in rows:
        ids = torch.tensor([view.ids])
        logits = model(input_ids=ids).logits[0, :-1].float()
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        weights = torch.tensor(tokens[1:]) * torch.tensor(view.mask[1:])
        (-(logprobs * weights).sum() / trained).backward()
    return {
        name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None
    }


def load_reference(case: Case) -> dict[str, Any]:
    """The committed gradient of one of `GRADIENT_CASES`."""
    from safetensors.torch import load_file

    return dict(load_file(str(reference_path(case))))


def distance(
    found: Mapping[str, Any], reference: Mapping[str, Any], factor: float = 1.0
) -> tuple[float, float]:
    """(‖g − factor·g_ref‖, ‖factor·g_ref‖) over all parameters; a parameter one of them lacks counts as 0 there."""
    squared = norm = 0.0
    for name in sorted({*found, *reference}):
        want = reference[name].double() * factor if name in reference else None
        have = found[name].double().cpu() if name in found else None
        apart = (
            have - want if have is not None and want is not None else have if want is None else want
        )
        assert apart is not None
        squared += float((apart**2).sum())
        norm += float((want**2).sum()) if want is not None else 0.0
    return squared**0.5, norm**0.5


def main() -> None:
    """Writes the gradients."""
    from safetensors.torch import save_file

    for case in GRADIENT_CASES:
        save_file(compute_reference(case), str(reference_path(case)))


if __name__ == "__main__":
    main()
