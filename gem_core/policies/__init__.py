"""Policies: generate actions, with a transformers model, a script or a baseline player."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_core.policies.smollm2 import load_smollm2
    from gem_core.policies.tiny import load_tiny, tiny_model_path
    from gem_core.policies.transformers_policy import TransformersPolicy

__all__ = ["TransformersPolicy", "load_smollm2", "load_tiny", "tiny_model_path"]

_HOMES = {
    "TransformersPolicy": "transformers_policy",
    "load_smollm2": "smollm2",
    "load_tiny": "tiny",
    "tiny_model_path": "tiny",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
