"""Tiny: the language model that ships with gem, a weak player of GuessTheNumber made by scripts/make_tiny_model.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gem_core.errors import MissingDependencyError

__all__ = ["load_tiny", "tiny_model_path"]


def tiny_model_path() -> Path:
    """The model folder, as `from_pretrained` takes it."""
    return Path(__file__).parent / "tiny_model"


def load_tiny(device: Any = "cpu") -> tuple[Any, Any]:
    """(model, tokenizer), in float32."""
    return load_folder(tiny_model_path(), "the tiny model", device)


def load_folder(path: str | Path, what: str, device: Any = "cpu") -> tuple[Any, Any]:
    """(model, tokenizer) of a model folder, in float32, ready to sample from."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError(what, "transformers", str(error)) from error
    with _without_bar():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.padding_side = "left"
    return model.to(device).eval(), tokenizer


@contextmanager
def _without_bar() -> Iterator[None]:
    """Keeps transformers from showing a bar for a folder that is read in a moment; that of a download stays."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    # not disable_progress_bar(), which also overwrites what the user has set in huggingface_hub
    logging._tqdm_active = False
    try:
        yield
    finally:
        logging._tqdm_active = shown
