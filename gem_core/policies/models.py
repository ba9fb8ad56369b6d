"""Models: load a language model by name, for recipes and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_core.policies.smollm2 import smollm2_path
from gem_core.policies.tiny import load_folder, tiny_model_path

__all__ = ["load_model", "model_path", "save_untied"]


def model_path(name: str) -> str:
    """Resolve `tiny` (ships with gem), `smollm2` (downloaded once), a folder or a hub name."""
    if name == "tiny":
        return str(tiny_model_path())
    if name == "smollm2":
        return str(smollm2_path())
    return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name


def load_model(name: str, device: Any = "cpu") -> tuple[Any, Any]:
    """Load (model, tokenizer) in float32 by a name that `model_path` resolves."""
    path = model_path(name)
    try:
        return load_folder(path, f"the model {name!r}", device)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the model {name!r} cannot be loaded ({str(error).splitlines()[0]}); "
            "use a folder with a config.json, a hub name, 'tiny' or 'smollm2'"
        ) from error


def save_untied(name: str, folder: str) -> str:
    """Save a copy of a model whose output layer does not share its weights with the embeddings.

    It computes the same logits. For trainers that would separate the two weights while their
    inference engine keeps one for both. Returns `folder`.
    """
    import torch

    model, tokenizer = load_model(name)
    output = model.get_output_embeddings()
    output.weight = torch.nn.Parameter(output.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
