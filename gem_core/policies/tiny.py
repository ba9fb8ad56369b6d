"""Tiny model: ships with gem and plays GuessTheNumber weakly; see scripts/make_tiny_model.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gem_core.errors import MissingDependencyError

__all__ = ["load_tiny", "tiny_model_path"]


def tiny_model_path() -> Path:
    """Return the model folder, for `from_pretrained`."""
    return Path(__file__).parent / "tiny_model"


def load_tiny(device: Any = "cpu") -> tuple[Any, Any]:
    """Load (model, tokenizer) in float32."""
    return load_folder(tiny_model_path(), "the tiny model", device)


def load_folder(path: str | Path, name: str, device: Any = "cpu") -> tuple[Any, Any]:
    """Load (model, tokenizer) in float32, ready to sample from; `name` is for error messages."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError(name, "transformers", str(error)) from error
    with _without_progress_bar():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.padding_side = "left"
    return model.to(device).eval(), tokenizer


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Hide the progress bar of loading weights; downloads keep theirs."""
    from transformers.utils import logging

    active = logging.is_progress_bar_enabled()
    # not disable_progress_bar(), which also changes the user's setting in huggingface_hub
    logging._tqdm_active = False
    try:
        yield
    finally:
        logging._tqdm_active = active
