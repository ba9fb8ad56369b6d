"""Reference gradients: the canonical loss in plain torch on the tiny model.

L = −(1/Z) Σ_sequences Σ_tokens A_token · log π(token | earlier tokens), where Z is the number of
trained tokens of the update. `python -m gem_conformance.reference` rewrites the
committed gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_conformance.expected import expected_of
from gem_conformance.golden import GRADIENT_CASES, Case
from gem_core.errors import MissingDependencyError

__all__ = [
    "compute_reference",
    "cosine",
    "distance",
    "load_reference",
    "reference_path",
    "tiny_model",
]


def reference_path(case: Case) -> Path:
    """Return the file with the gradient of a case."""
    return Path(__file__).with_name(f"reference_{case.name.replace(' ', '_')}.safetensors")


def tiny_model() -> Any:
    """Load the tiny model in float32 and training mode."""
    try:
        from gem_core.policies.tiny import load_tiny
    except ImportError as error:
        raise MissingDependencyError(
            "the reference gradient", "transformers", str(error)
        ) from error
    model, _ = load_tiny()
    return model.float().train()


def compute_reference(case: Case, model: Any = None) -> dict[str, Any]:
    """Compute the gradient of the canonical loss, one sequence at a time, without padding."""
    import torch

    model = tiny_model() if model is None else model
    model.zero_grad(set_to_none=True)
    sequences = [sequence for expected in expected_of(case) for sequence in expected.sequences]
    trained = sum(sum(sequence.mask) for sequence in sequences)
    for sequence in sequences:
        ids = torch.tensor([sequence.ids])
        logits = model(input_ids=ids).logits[0, :-1].float()
        logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        weights = torch.tensor(sequence.advantages[1:]) * torch.tensor(sequence.mask[1:])
        (-(logprobs * weights).sum() / trained).backward()
    return {
        name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None
    }


def load_reference(case: Case) -> dict[str, Any]:
    """Load the committed gradient of one of `GRADIENT_CASES`."""
    from safetensors.torch import load_file

    return dict(load_file(str(reference_path(case))))


def distance(
    gradient: Mapping[str, Any], reference: Mapping[str, Any], factor: float = 1.0
) -> tuple[float, float]:
    """Return (‖g − factor·g_ref‖, ‖factor·g_ref‖); a parameter missing in one counts as 0 there."""
    squared = norm = 0.0
    for name in sorted({*gradient, *reference}):
        expected: Any = reference[name].double() * factor if name in reference else 0.0
        actual: Any = gradient[name].double().cpu() if name in gradient else 0.0
        squared += float(((actual - expected) ** 2).sum())
        norm += float((expected**2).sum()) if name in reference else 0.0
    return squared**0.5, norm**0.5


def cosine(gradient: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """Return the cosine of the angle between two gradients."""
    product = sum(
        float((gradient[name].double().cpu() * reference[name].double()).sum())
        for name in reference
        if name in gradient
    )
    norms = distance(gradient, {})[0] * distance(reference, {})[0]
    return product / norms if norms else 0.0


def main() -> None:
    """Write the gradients."""
    from safetensors.torch import save_file

    for case in GRADIENT_CASES:
        save_file(compute_reference(case), str(reference_path(case)))


if __name__ == "__main__":
    main()
